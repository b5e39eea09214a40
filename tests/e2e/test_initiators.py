"""What every initiator expects of a target: each test is one such expectation. What single ones
expect stands in test_linux.py, test_esxi.py and test_windows.py.
"""
import struct
import time

import host
from host import Host
from raid_lab import drives, raid

MIB = 1 << 20


def test_large_io_of_1_mib_and_more(t):
    """1 MiB I/O and far beyond it neither aborts nor hangs."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '128MiB'}])
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 1M', '-c', 'write -P 2 1M 16M',
          '-c', 'write -P 3 17M 64M', '-c', 'read -P 1 0 1M', '-c', 'read -P 2 1M 16M',
          '-c', 'read -P 3 17M 64M', daemon.url())


def test_300_sessions_of_one_initiator_side_by_side(t):
    """Sessions with ISIDs of their own do not reinstate each other."""
    daemon = t.daemon()
    hosts = [Host(t, daemon, isid=isid) for isid in range(1, 301)]
    for each in hosts:
        each.attentions()
    rows = daemon.sandbay_json('session', 'list')['sessions']
    t.check(len(rows) == 300, f'{len(rows)} sessions, not 300')


def test_same_isid_reinstates_the_session(t):
    """InitiatorName, ISID and portal group again with TSIH 0: the old session ends first, and
    what it had begun does not come after what the new one writes."""
    daemon = t.daemon()
    old = Host(t, daemon, isid=5)
    old.attentions()
    old.start(host.write_10(0, 1024), data=b'\1' * 65536)  # The rest never comes.
    new = Host(t, daemon, isid=5)
    t.check(old.peer.closed(), 'the old connection was not closed')
    new.attentions()
    t.check(new.write(0, b'\2' * 65536).good, 'a write in the new session')
    t.check(new.read(0, 128).data == b'\2' * 65536, 'what the new session wrote')
    rows = daemon.sandbay_json('session', 'list')['sessions']
    t.check(len(rows) == 1, f'{len(rows)} sessions')


def test_nop_out_is_answered(t):
    """A ping is answered with its data."""
    daemon = t.daemon()
    Host(t, daemon).ping(b'anybody in')


def test_caching_mode_page_says_write_back(t):
    """Without this page hosts take the cache for write-through and never send SYNCHRONIZE CACHE."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    data = each.good(bytes([0x1a, 0, 0x08, 0, 192, 0]), 192)
    page = data[4 + data[3]:]
    t.check(page[0] & 0x3f == 0x08 and page[2] & 0x04, f'no WCE in {page.hex()}')


def test_mode_sense_with_a_tiny_allocation_length(t):
    """Lengths of 0 to 5 bytes are honoured, not exceeded."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    for length in range(6):
        reply = each.command(bytes([0x1a, 0, 0x3f, 0, length, 0]), length)
        t.check(reply.good and len(reply.data) == length, f'{reply!r} for {length}')


def test_read_capacity_16_of_exactly_12_bytes(t):
    """The allocation length is honoured exactly; old Windows takes 12 bytes only."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    data = each.good(host.read_capacity_16(12), 12)
    t.check(struct.unpack('>QI', data) == (64 * MIB // 512 - 1, 512), data.hex())


def test_residuals_of_short_transfers(t):
    """An underflow is reported only where there is one: ESXi takes a false one for an error."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    for expected, flag, residual in ((512, 0, 0), (1024, 2, 512), (256, 4, 256)):
        reply = each.command(host.read_10(0, 1), expected)
        t.check(reply.flags & 6 == flag, f'expecting {expected}: {reply!r}')
        t.check(not flag or reply.residual == residual, f'expecting {expected}: {reply!r}')
        t.check(len(reply.data) == min(expected, 512), f'expecting {expected}: {reply!r}')
    for cdb, length in ((host.inquiry(96), 96), (bytes([0x25]) + bytes(9), 8),
                        (host.read_capacity_16(), 32)):
        exact = each.command(cdb, length)
        t.check(exact.good and exact.flags & 6 == 0, f'{cdb.hex()}: {exact!r}')
    exact = each.write(0, bytes(4096))
    t.check(exact.good and exact.flags & 6 == 0, f'a write: {exact!r}')


def test_abort_of_a_finished_command_is_answered(t):
    """ABORT TASK for a command that is finished is complete; one that may have crossed the
    command's end on its way hears that there is no such task."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    tag, cmd_sn = each.tag, each.cmd_sn
    each.good(host.TEST_UNIT_READY)
    result = each.manage(host.ABORT_TASK, task=tag, ref_cmd_sn=cmd_sn)
    t.check(result == host.NO_SUCH_TASK, f'response {result}, not task does not exist')
    time.sleep(1.5)
    result = each.manage(host.ABORT_TASK, task=tag, ref_cmd_sn=cmd_sn)
    t.check(result == host.COMPLETE, f'response {result}, not function complete')


def test_reserve_and_release_6(t):
    """The other host sees RESERVATION CONFLICT until RELEASE (6), or until the session of the
    one that reserved has ended."""
    daemon = t.daemon()
    first, second = Host(t, daemon, isid=1), Host(t, daemon, isid=2)
    first.attentions()
    second.attentions()
    first.good(bytes([0x16, 0, 0, 0, 0, 0]))
    t.check(second.read(0, 1).status == host.RESERVATION_CONFLICT, 'a read of the other host')
    first.good(bytes([0x17, 0, 0, 0, 0, 0]))
    t.check(second.read(0, 1).good, 'a read after RELEASE')
    first.good(bytes([0x16, 0, 0, 0, 0, 0]))
    t.check(second.read(0, 1).status == host.RESERVATION_CONFLICT, 'a read of the other host')
    first.close()
    t.until(lambda: second.read(0, 1).good, 'the reservation ends with its session')


def test_resize_of_an_exported_lun_online(t):
    """A LUN grown while a session is on it: the new size is there in that session."""
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'grows', '--size', '16MiB')
    daemon.sandbay('access', 'add', 'grows', '--initiator', '*')
    each = Host(t, daemon, 'grows')
    each.attentions()
    daemon.sandbay('volume', 'expand', 'grows', '--size', '32MiB')
    told = each.command(host.TEST_UNIT_READY)
    t.check(told.key == 6 and told.additional == 0x2a09, f'CAPACITY DATA HAS CHANGED: {told!r}')
    data = each.good(host.read_capacity_16(), 32)
    t.check(int.from_bytes(data[:8], 'big') == 32 * MIB // 512 - 1, data.hex())
    t.check(each.write(32 * MIB // 512 - 8, b'\x66' * 4096).good, 'a write at the new end')


def presented(each):
    """How a unit presents itself: RMB, MAXIMUM UNMAP LBA COUNT, MAXIMUM WRITE SAME LENGTH, the
    rotation rate and the EUI-64 designators."""
    standard = each.good(host.inquiry(), 255)
    limits = each.good(host.inquiry(page=0xb0), 255)
    characteristics = each.good(host.inquiry(page=0xb1), 255)
    names = host.designators(each.good(host.inquiry(page=0x83), 255))
    return (bool(standard[1] & 0x80), int.from_bytes(limits[20:24], 'big'),
            int.from_bytes(limits[36:44], 'big'), int.from_bytes(characteristics[4:6], 'big'),
            [value.hex() for code_set, association, kind, value in names
             if (code_set, association, kind) == (1, 0, 2)])


def test_presentation_of_a_lun_is_set_per_volume(t):
    """A removable medium, its rotation rate, its limits and an EUI-64 designator, declared or given
    at creation, also after a restart; a clone and a snapshot have all but the designator."""
    daemon = t.daemon([{'name': 'plain', 'memory': True, 'size': '16MiB'},
                       {'name': 'declared', 'file': t.path('declared.img'), 'size': '16MiB',
                        'block_size': 4096, 'removable': True, 'rotation': 7200,
                        'eui64': 'eui.0025BA0000000001', 'unmap_limit': '8MiB',
                        'write_same_limit': '64KiB'}],
                      extra=drives(['d'], '96MiB') + raid('r', 'jbod', ['d']) +
                      '[[pool]]\nname = "p"\npage = "1MiB"\n')
    daemon.sandbay('volume', 'create', 'made', '--size', '16MiB', '--pool', 'p', '--thin',
                   '--removable', '--rotation', '1', '--eui64', '0025ba0000000002',
                   '--unmap-limit', '1MiB', '--write-same-limit', '512KiB', '--initiator', '*')
    daemon.sandbay('volume', 'create', 'same', '--size', '16MiB', '--pool', 'p', '--thin',
                   '--eui64', '0025ba0000000002', ok=False)
    expected = {'plain': (False, 1 << 20, 1 << 20, 1, []),
                'declared': (True, 2048, 16, 7200, ['0025ba0000000001']),
                'made': (True, 2048, 1024, 1, ['0025ba0000000002'])}

    def require_all(when):
        for name, wanted in expected.items():
            each = Host(t, daemon, name)
            found = presented(each)
            each.close()
            t.check(found == wanted, f'{name} {when}: {found}, not {wanted}')
    require_all('at first')
    shown = daemon.sandbay_json('volume', 'show', 'made')
    keys = {'removable': True, 'rotation': 1, 'eui64': 'eui.0025ba0000000002',
            'unmap_limit': MIB, 'write_same_limit': MIB // 2}
    t.check({key: shown[key] for key in keys} == keys, f'{shown}')
    text = daemon.sandbay('volume', 'show', 'made').stdout
    t.check('eui.0025ba0000000002' in text and 'no rotation' in text, text)
    daemon.sandbay('volume', 'clone', 'made', 'copy')
    daemon.sandbay('access', 'add', 'copy', '--initiator', '*')
    daemon.sandbay('snapshot', 'create', 'made', 's')
    daemon.sandbay('snapshot', 'online', 'made', 's')
    expected |= {'copy': (True, 2048, 1024, 1, []), 'made-s': (True, 2048, 1024, 1, [])}
    require_all('with a clone and a snapshot')
    t.check(daemon.terminate() == 0, 'an orderly end')
    daemon.start()
    require_all('after a restart')


def test_adding_a_lun_leaves_other_sessions_alone(t):
    """A new volume disturbs no session with another target."""
    daemon = t.daemon()
    each = Host(t, daemon)
    each.attentions()
    daemon.sandbay('volume', 'create', 'more', '--size', '16MiB')
    each.good(host.TEST_UNIT_READY)


def test_idle_daemon_uses_no_cpu(t):
    """Logged-in sessions with nothing to do cost nothing."""
    daemon = t.daemon()
    hosts = [Host(t, daemon, isid=isid) for isid in range(1, 11)]
    time.sleep(1)
    before = daemon.cpu_seconds()
    time.sleep(5)
    spent = daemon.cpu_seconds() - before
    t.say(f'{spent:.2f} s of CPU in 5 s with {len(hosts)} sessions idle')
    t.check(spent <= 0.15, f'{spent:.2f} s of CPU in 5 idle seconds')
