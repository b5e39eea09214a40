"""What VMware ESXi expects, and where it takes offence although the standards do not."""
import struct
import time

import harness
import host
from host import Host

MIB = 1 << 20
NAA, T10, VENDOR_SPECIFIC, UNIT = 3, 1, 0, 0


def test_esxi_sees_the_disk(t):
    """A scan, from the list of LUNs to the capacity, with every unit attention still to come: it
    finds the disk and is refused nothing but what is not there."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'},
                       {'name': 'more', 'size': '32MiB', 'target': harness.NAME_PREFIX + 'disk',
                        'lun': 3}])
    esxi = Host(t, daemon)
    luns = host.luns_of(esxi.good(host.report_luns(), 4096))
    t.check(luns == [0, 3], f'LUNs {luns}')
    for lun, size in ((0, 64 * MIB), (3, 32 * MIB)):
        standard = esxi.good(host.inquiry(36), 36, lun=lun)
        t.check(standard[0] == 0 and standard[2] >= 5 and standard[7] & 2,
                f'a disk of SPC-3 or later that queues commands: {standard.hex()}')
        for page in esxi.good(host.inquiry(page=0), 255, lun=lun)[4:]:
            t.check(esxi.good(host.inquiry(page=page), 255, lun=lun)[1] == page, f'page {page:#x}')
        esxi.attentions(lun)
        last, block = struct.unpack('>II', esxi.good(bytes([0x25]) + bytes(9), 8, lun=lun))
        t.check((last + 1) * block == size, f'LUN {lun}: {last} {block}')
        esxi.good(bytes([0x1a, 0, 0x3f, 0, 255, 0]), 255, lun=lun)
        t.check(len(esxi.read(0, 8, lun).data) == 4096, 'the first blocks')
    absent = esxi.good(host.inquiry(36), 36, lun=1)
    t.check(absent[0] == 0x7f, f'LUN 1 is not there, says {absent[0]:#x}')


def test_esxi_names_of_units(t):
    """NAA of the logical unit first, nothing vendor-specific; T10 designators differ within their
    first eight characters; all of it is the same after a restart."""
    volumes = [{'name': f'v{number}', 'size': '16MiB'} for number in range(8)]
    daemon = t.daemon(volumes)

    def names():
        found = []
        for volume in volumes:
            page = Host(t, daemon, volume['name']).good(host.inquiry(page=0x83), 255)
            found.append(host.designators(page))
        return found
    before = names()
    for listed in before:
        kinds = [(d[1], d[2]) for d in listed]
        t.check(kinds[0] == (UNIT, NAA), f'(association, type): {kinds}')
        t.check(VENDOR_SPECIFIC not in [kind for _, kind in kinds], str(kinds))
        naa = listed[0][3]
        t.check(len(naa) == 16 and naa[0] >> 4 == 6, naa.hex())
    vendors = [next(d[3] for d in listed if d[1:3] == (UNIT, T10)) for listed in before]
    t.check(len({value[8:16] for value in vendors}) == len(volumes), f'not unique: {vendors}')
    t.check(len({listed[0][3] for listed in before}) == len(volumes), 'an NAA occurs twice')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    daemon.start()
    t.check(names() == before, 'the names have changed')


def test_esxi_aborts_are_never_rejected(t):
    """ABORT TASK again and again for commands that are finished: each is complete, none is
    rejected, and the connection stays (ESXi drops it after four Rejects)."""
    daemon = t.daemon()
    esxi = Host(t, daemon)
    esxi.attentions()
    finished = []
    for number in range(4):
        finished.append((esxi.tag, esxi.cmd_sn))
        t.check(esxi.read(number, 1).good, 'a read')
    time.sleep(1.5)  # It gives a command at least as long.
    for _ in range(5):
        for tag, cmd_sn in finished:
            result = esxi.manage(host.ABORT_TASK, task=tag, ref_cmd_sn=cmd_sn)
            t.check(result == host.COMPLETE, f'response {result}, not function complete')
    # Many at once, as when a path is given up.
    sent = [esxi.send_management(host.ABORT_TASK, task=tag, ref_cmd_sn=cmd_sn)
            for _ in range(32) for tag, cmd_sn in finished]
    results = {esxi.managed(tag) for tag in sent}
    t.check(results == {host.COMPLETE}, f'responses {results}')
    esxi.ping()
    t.check(esxi.read(0, 1).good, 'a read afterwards')


def unmap_anywhere(t, daemon, volume):
    esxi = Host(t, daemon, volume)
    esxi.attentions()
    content = bytearray(b'\x76' * (4096 * host.BLOCK))
    for start in range(0, len(content), MIB):
        written = esxi.write(start // host.BLOCK, bytes(content[start:start + MIB]))
        t.check(written.good, f'{volume}: {written!r}')
    # No multiple of anything that a device could ask for.
    runs = [(1, 1), (3, 9), (127, 2), (255, 770), (2047, 1111), (4095, 1)]
    cdb, data = host.unmap(runs)
    unmapped = esxi.command(cdb, data=data)
    t.check(unmapped.good, f'{volume}: {unmapped!r}')
    for lba, blocks in runs:
        content[lba * host.BLOCK:(lba + blocks) * host.BLOCK] = bytes(blocks * host.BLOCK)
    found = b''.join(esxi.read(lba, 1024).data for lba in range(0, 4096, 1024))
    wrong = next((n // 512 for n in range(0, len(content), 512)
                  if found[n:n + 512] != content[n:n + 512]), None)
    t.check(wrong is None, f'{volume}: block {wrong} is not what it should be')


SET = ''.join(f'\n[[drive]]\nname = "d{number}"\nmemory = true\nsize = "64MiB"\n'
              for number in range(4)) + '''
[[raid]]
name = "five"
level = "raid5"
drives = ["d0", "d1", "d2", "d3"]
'''


def test_esxi_vmfs_unmaps_without_regard_to_alignment(t):
    """What was unmapped reads as zeros, to the block, and its neighbours are as they were: on a
    file, in memory and on a RAID set."""
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB'},
                       {'name': 'memory', 'size': '16MiB', 'memory': True},
                       {'name': 'raid', 'size': '16MiB', 'raid': 'five'}], extra=SET)
    for volume in ('disk', 'memory', 'raid'):
        unmap_anywhere(t, daemon, volume)
    daemon.sandbay('raid', 'verify', 'five', '--wait')
    counters = daemon.sandbay_json('raid', 'show', 'five')['counters']
    t.check(counters['mismatches'] == 0, 'parity is consistent')


def test_esxi_is_offered_nothing_that_is_not_there(t):
    """ESXi uses COMPARE AND WRITE and EXTENDED COPY as soon as they are offered: the first is, with
    its limit (test_atomic.py), the other is neither reported nor obeyed."""
    daemon = t.daemon()
    esxi = Host(t, daemon)
    esxi.attentions()
    limits = esxi.good(host.inquiry(64, 0xb0), 64)
    t.check(limits[5] == 255, f'MAXIMUM COMPARE AND WRITE LENGTH {limits[5]}')
    standard = esxi.good(host.inquiry(96), 96)
    t.check(not standard[5] & 0x08, 'third-party copy (3PC) is claimed')
    t.check(0x8f not in esxi.good(host.inquiry(page=0), 255)[4:], 'page 8Fh is listed')
    for opcode in (0x83, 0x84):
        answer = esxi.good(struct.pack('>BBBBHIBB', 0xa3, 0x0c, 1, opcode, 0, 512, 0, 0), 512)
        t.check(answer[1] & 7 == 1, f'opcode {opcode:#x}: {answer.hex()}')
        refused = esxi.command(bytes([opcode]) + bytes(15))
        t.check(refused.key == 5 and refused.additional == 0x2000, f'{opcode:#x}: {refused!r}')
