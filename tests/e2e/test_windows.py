"""What Windows expects of a target and of a disk."""
import struct

import harness
import host
from host import Host

MIB = 1 << 20
SECRET = 'sixteen-letters!'


def test_windows_luns_beyond_eight(t):
    """LUNs of one target up to the last one, with gaps: listed in order and each reached by the
    address that the list gives."""
    numbers = [0, 1, 7, 8, 9, 15, 16, 63, 64, 127, 128, 254, 255, 256, 257, 1000, 16382, 16383]
    sizes = {number: index + 1 for index, number in enumerate(numbers)}
    target = harness.NAME_PREFIX + 'disk'
    daemon = t.daemon([{'name': f'v{number}' if number else 'disk', 'size': f'{sizes[number]}MiB',
                        'memory': True, 'target': target, 'lun': number} for number in numbers])
    windows = Host(t, daemon)
    listed = host.luns_of(windows.good(host.report_luns(), 4096))
    t.check(listed == numbers, f'LUNs {listed}')
    names = set()
    for number in numbers:
        windows.attentions(number)
        capacity = windows.good(host.read_capacity_16(), 32, lun=number)
        blocks = int.from_bytes(capacity[:8], 'big') + 1
        t.check(blocks == sizes[number] * MIB // 512, f'LUN {number}: {blocks}')
        page = windows.good(host.inquiry(page=0x83), 255, lun=number)
        names.add(host.designators(page)[0][3])
    t.check(len(names) == len(numbers), 'two LUNs have one name')
    refused = daemon.sandbay('volume', 'create', 'beyond', '--size', '1MiB', '--lun', '16384',
                             '--target', target, ok=None)
    t.check(refused.returncode != 0 and '16383' in refused.stdout, refused.stdout)
    for number in (2, 10, 253, 258, 16381, 0x8000):  # The last is a field of eight bytes.
        reply = windows.command(host.TEST_UNIT_READY, lun=number)
        t.check(reply.key == 5 and reply.additional == 0x2500, f'LUN {number}: {reply!r}')


def test_windows_formats_a_disk(t):
    """RESERVE, writes with status and data in one PDU or many, VERIFY (10) over everything,
    SYNCHRONIZE CACHE, RELEASE."""
    daemon = t.daemon()
    windows = Host(t, daemon, MaxRecvDataSegmentLength='65536')
    windows.attentions()
    other = Host(t, daemon, isid=2)
    other.attentions()
    windows.good(bytes([0x16, 0, 0, 0, 0, 0]))
    blocked = other.write(0, bytes(512))
    t.check(blocked.status == host.RESERVATION_CONFLICT, f'{blocked!r}')
    for lba in range(0, 4096, 128):
        t.check(windows.write(lba, struct.pack('>I', lba) * (128 * 128)).good, f'write at {lba}')
    for lba in range(0, 64 * MIB // 512, 16384):
        verified = windows.command(struct.pack('>BBIBHB', 0x2f, 0, lba, 0, 16384, 0))
        t.check(verified.good, f'VERIFY (10) at {lba}: {verified!r}')
    tag = windows.start(host.read_10(128, 512), 512 * 512, read=True)
    offset, header = 0, b''
    while not (header and header[1] & 1):
        header, data = windows.peer.receive()
        t.check(header[0] & 0x3f == 0x25 and int.from_bytes(header[16:20], 'big') == tag,
                f'not a Data-In: {header.hex()}')
        where = int.from_bytes(header[40:44], 'big')
        t.check(where == offset, f'buffer offset {where}, not {offset}')
        for at in range(0, len(data), 65536):
            lba = 128 + (offset + at) // 65536 * 128
            t.check(data[at:at + 4] == struct.pack('>I', lba), f'other data at {offset + at}')
        offset += len(data)
    t.check(offset == 512 * 512, f'{offset} bytes')
    windows.good(struct.pack('>BBIBHB', 0x35, 0, 0, 0, 0, 0))
    windows.good(bytes([0x17, 0, 0, 0, 0, 0]))
    t.check(other.write(0, bytes(512)).good, 'a write after RELEASE')


def test_windows_sees_trim(t):
    """Block limits, granularity and provisioning as a host that trims wants them, and UNMAP that
    gives the space of the file back."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}])
    windows = Host(t, daemon)
    windows.attentions()
    t.check({0xb0, 0xb2} <= set(windows.good(host.inquiry(page=0), 255)[4:]), 'pages B0h and B2h')
    limits = windows.good(host.inquiry(64, 0xb0), 64)
    t.check(struct.unpack('>H', limits[2:4])[0] == 0x3c, 'the page has its full length')
    blocks, count, granularity = struct.unpack('>III', limits[20:32])
    t.check(blocks > 0 and count > 0 and granularity > 0, f'{blocks} {count} {granularity}')
    provisioning = windows.good(host.inquiry(64, 0xb2), 64)
    t.check(provisioning[5] & 0x80, f'LBPU: {provisioning.hex()}')
    t.check(provisioning[6] & 7 == 2, f'not thin: {provisioning.hex()}')
    for lba in range(0, 32768, 2048):
        t.check(windows.write(lba, b'\x77' * MIB).good, 'a write')
    windows.good(struct.pack('>BBIBHB', 0x35, 0, 0, 0, 0, 0))
    full = daemon.stored_bytes()
    cdb, data = host.unmap([(0, 32768)])
    t.check(windows.command(cdb, data=data).good, 'UNMAP')
    windows.good(struct.pack('>BBIBHB', 0x35, 0, 0, 0, 0, 0))
    t.check(windows.read(2047, 2).data == bytes(1024), 'unmapped blocks read as zeros')
    freed = full - daemon.stored_bytes()
    t.check(freed > 8 * MIB, f'{freed} bytes of 16 MiB were freed')


def test_windows_one_secret_on_all_sessions(t):
    """Sessions and connections of a host all log in with one CHAP secret, at the same time."""
    chap = {'initiator': '*', 'chap_user': 'windows', 'chap_secret': SECRET}
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB', 'access': [chap]}], reactors=2)
    report = daemon.load('--sessions', 4, '--connections', 4, '--verify', '--write',
                         '--duration', '2s', '--queue-depth', 8,
                         daemon.url(user=f'windows%{SECRET}'))
    t.check(report['errors'] == 0 and report['miscompares'] == 0, str(report)[:1000])
    t.check(report['blocks_verified'] > 0, 'nothing was verified')
    wrong = t.run(t.program('sandbay'), 'load', '--sessions', '2', '--connections', '2',
                  '--duration', '1s', daemon.url(user='windows%sixteen-letters?'), ok=False)
    t.check('authentication' in wrong.stdout.lower(), wrong.stdout)


def test_windows_sql_server_physical_block_size(t):
    """The size of physical blocks is as configured: some programs refuse large ones."""
    sizes = {'plain': 4096, 'small': 512, 'large': 16384}
    volumes = [{'name': name, 'size': '16MiB', 'physical_block_size': size}
               for name, size in sizes.items() if name != 'plain']
    daemon = t.daemon(volumes + [{'name': 'plain', 'size': '16MiB'}])
    for name, size in sizes.items():
        windows = Host(t, daemon, name)
        windows.attentions()
        capacity = windows.good(host.read_capacity_16(), 32)
        t.check(512 << (capacity[13] & 0xf) == size, f'{name}: exponent {capacity[13] & 0xf}')
