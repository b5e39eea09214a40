"""What initiators expect of a target: each test is one such expectation."""
import struct
import time

import harness
import wire

ME = 'iqn.2026-11.org.sandbay:e2e-me'
MIB = 1 << 20


def peer_of(t, daemon, isid=1, **keys):
    peer = wire.Peer(daemon.address())
    status = peer.login(harness.NAME_PREFIX + 'disk', ME, isid=isid, **keys)
    t.check(status == 0, f'login status {status:#06x}')
    return peer


def command(peer, cdb, tag, cmd_sn, length=0, read=False, data=b''):
    """Sends it and returns (response header, data in)."""
    peer.send(wire.scsi_command(cdb, tag, cmd_sn, length or len(data), read=read,
                                write=bool(data), data=data))
    received = b''
    while True:
        header, payload = peer.receive()
        opcode = header[0] & 0x3f
        if opcode == 0x25:
            received += payload
            if header[1] & 1:
                return header, received
        elif opcode == 0x21:
            return header, received + payload


def clear_unit_attention(peer, cmd_sn=1):
    """TEST UNIT READY until GOOD; the next CmdSN."""
    for _ in range(5):
        header, _ = command(peer, bytes(6), 100 + cmd_sn, cmd_sn)
        cmd_sn += 1
        if header[3] == 0:
            break
    return cmd_sn


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
    peers = [peer_of(t, daemon, isid=isid) for isid in range(1, 301)]
    for number in (0, 150, 299):
        header, _ = command(peers[number], bytes(6), 7, 1)
        t.check(header[0] & 0x3f == 0x21, 'no SCSI response')
    rows = daemon.sandbay_json('session', 'list')
    rows = rows.get('sessions', rows) if isinstance(rows, dict) else rows
    t.check(len(rows) == 300, f'{len(rows)} sessions, not 300')


def test_same_isid_reinstates_the_session(t):
    """InitiatorName, ISID and portal group again with TSIH 0: the old session ends first."""
    daemon = t.daemon()
    old = peer_of(t, daemon, isid=5)
    new = peer_of(t, daemon, isid=5)
    t.check(old.closed(), 'the old connection was not closed')
    header, _ = command(new, bytes(6), 7, 1)
    t.check(header[0] & 0x3f == 0x21, 'no SCSI response in the new session')


def test_nop_out_is_answered(t):
    """A ping is answered with its data, as Linux sends one every five seconds."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    peer.send(wire.nop_out(0x77, 1, data=b'are you there'))
    header, data = peer.receive()
    t.check(header[0] & 0x3f == wire.NOP_IN and data == b'are you there', repr((header, data)))


def test_caching_mode_page_says_write_back(t):
    """Linux reads WCE here and, without the page, would never send SYNCHRONIZE CACHE."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    _, data = command(peer, bytes([0x1a, 0, 0x08, 0, 192, 0]), 9, cmd_sn, 192, read=True)
    page = data[4 + data[3]:]
    t.check(page[0] & 0x3f == 0x08 and page[2] & 0x04, f'no WCE in {page.hex()}')


def test_mode_sense_with_a_tiny_allocation_length(t):
    """Lengths of 0 to 5 bytes are honoured, not exceeded."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    for length in range(6):
        header, data = command(peer, bytes([0x1a, 0, 0x3f, 0, length, 0]), 20 + length, cmd_sn,
                               length, read=True)
        cmd_sn += 1
        t.check(header[3] == 0 and len(data) == length, f'{len(data)} bytes for {length}')


def test_read_capacity_16_of_exactly_12_bytes(t):
    """The allocation length is honoured exactly; old Windows takes 12 bytes only."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    cdb = struct.pack('>BBQIBB', 0x9e, 0x10, 0, 12, 0, 0)
    header, data = command(peer, cdb, 9, cmd_sn, 12, read=True)
    t.check(header[3] == 0 and len(data) == 12, data.hex())
    t.check(struct.unpack('>QI', data) == (64 * MIB // 512 - 1, 512), data.hex())


def test_device_identification_is_of_the_logical_unit(t):
    """VPD 83h holds an NAA designator with LUN association, which ESXi demands."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    _, data = command(peer, bytes([0x12, 1, 0x83, 1, 0, 0]), 9, cmd_sn, 256, read=True)
    designators, at = [], 4
    while at < len(data):
        designators.append((data[at] & 0xf, data[at + 1] >> 4 & 3, data[at + 1] & 0xf))
        at += 4 + data[at + 3]
    t.check((1, 0, 3) in designators, f'(code set, association, type): {designators}')


def test_residuals_of_short_transfers(t):
    """An underflow is reported only where there is one: ESXi takes a false one for an error."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    cdb = struct.pack('>BBIBHB', 0x28, 0, 0, 0, 1, 0)
    for expected, flag, residual in ((512, 0, 0), (1024, 2, 512), (256, 4, 256)):
        header, data = command(peer, cdb, 9, cmd_sn, expected, read=True)
        cmd_sn += 1
        t.check(header[1] & 6 == flag, f'expecting {expected}: flags {header[1]:#x}')
        if flag:
            t.check(int.from_bytes(header[44:48], 'big') == residual, header.hex())
        t.check(len(data) == min(expected, 512), f'{len(data)} bytes')


def test_abort_of_a_finished_command_is_answered(t):
    """ABORT TASK for a command that is already finished gets an answer ESXi does not repeat."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    header, _ = command(peer, bytes(6), 50, cmd_sn)
    request = struct.pack('>BBHI', 0x42, 0x81, 0, 0) + bytes(8)
    request += struct.pack('>IIIIII', 51, 50, cmd_sn + 1, 0, cmd_sn, 0) + bytes(8)
    peer.send(request)
    header, _ = peer.receive()
    t.check(header[0] & 0x3f == 0x22 and header[2] in (0, 1), header.hex())
    t.check(header[2] == 0, f'response {header[2]}, not function complete')


def test_reserve_and_release_6(t):
    """ESXi and Windows format with RESERVE(6): the other host sees RESERVATION CONFLICT."""
    daemon = t.daemon()
    first, second = peer_of(t, daemon, isid=1), peer_of(t, daemon, isid=2)
    sn_first, sn_second = clear_unit_attention(first), clear_unit_attention(second)
    read = struct.pack('>BBIBHB', 0x28, 0, 0, 0, 1, 0)
    header, _ = command(first, bytes([0x16, 0, 0, 0, 0, 0]), 60, sn_first)
    t.check(header[3] == 0, f'RESERVE: status {header[3]:#x}')
    header, _ = command(second, read, 61, sn_second, 512, read=True)
    t.check(header[3] == 0x18, f'read of the other: status {header[3]:#x}')
    header, _ = command(first, bytes([0x17, 0, 0, 0, 0, 0]), 62, sn_first + 1)
    t.check(header[3] == 0, f'RELEASE: status {header[3]:#x}')
    header, _ = command(second, read, 63, sn_second + 1, 512, read=True)
    t.check(header[3] == 0, f'read after RELEASE: status {header[3]:#x}')


def test_irrelevant_bursts_do_not_fail_login(t):
    """FirstBurstLength with InitialR2T=Yes and ImmediateData=No is answered, not refused."""
    daemon = t.daemon()
    peer = peer_of(t, daemon, InitialR2T='Yes', ImmediateData='No', FirstBurstLength='65536',
                   MaxBurstLength='262144')
    header, _ = command(peer, bytes(6), 7, 1)
    t.check(header[0] & 0x3f == 0x21, 'no SCSI response')


def test_resize_of_an_exported_lun_online(t):
    """A LUN grown while a session is on it: the new size is there in that session."""
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'grows', '--size', '16MiB')
    daemon.sandbay('access', 'add', 'grows', '--initiator', '*')
    peer = wire.Peer(daemon.address())
    t.check(peer.login(harness.NAME_PREFIX + 'grows', ME) == 0, 'login')
    cmd_sn = clear_unit_attention(peer)
    daemon.sandbay('volume', 'expand', 'grows', '--size', '32MiB')
    header, data = command(peer, bytes(6), 70, cmd_sn)
    t.check(header[3] == 2, 'no unit attention: CAPACITY DATA HAS CHANGED is due')
    t.check(b'\x2a\x09' in data, data.hex())
    cdb = struct.pack('>BBQIBB', 0x9e, 0x10, 0, 32, 0, 0)
    _, data = command(peer, cdb, 71, cmd_sn + 1, 32, read=True)
    t.check(int.from_bytes(data[:8], 'big') == 32 * MIB // 512 - 1, data.hex())


def test_adding_a_lun_leaves_other_sessions_alone(t):
    """A new volume disturbs no session with another target."""
    daemon = t.daemon()
    peer = peer_of(t, daemon)
    cmd_sn = clear_unit_attention(peer)
    daemon.sandbay('volume', 'create', 'more', '--size', '16MiB')
    header, _ = command(peer, bytes(6), 70, cmd_sn)
    t.check(header[0] & 0x3f == 0x21 and header[3] == 0, header.hex())


def test_idle_daemon_uses_no_cpu(t):
    """Logged-in sessions with nothing to do cost nothing."""
    daemon = t.daemon()
    peers = [peer_of(t, daemon, isid=isid) for isid in range(1, 11)]
    time.sleep(1)
    before = daemon.cpu_seconds()
    time.sleep(5)
    spent = daemon.cpu_seconds() - before
    t.say(f'{spent:.2f} s of CPU in 5 s with {len(peers)} sessions idle')
    t.check(spent <= 0.15, f'{spent:.2f} s of CPU in 5 idle seconds')
