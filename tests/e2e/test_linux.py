"""What Linux expects: open-iscsi's login and error handling, and what its disk driver asks."""
import struct

import harness
import host
import wire
from host import Host

MIB = 1 << 20

# What open-iscsi offers as it ships, in its order.
OPEN_ISCSI = {
    'HeaderDigest': 'None', 'DataDigest': 'None', 'DefaultTime2Wait': '2',
    'DefaultTime2Retain': '0', 'IFMarker': 'No', 'OFMarker': 'No', 'ErrorRecoveryLevel': '0',
    'InitialR2T': 'No', 'ImmediateData': 'Yes', 'MaxBurstLength': '16776192',
    'FirstBurstLength': '262144', 'MaxOutstandingR2T': '1', 'MaxConnections': '1',
    'DataPDUInOrder': 'Yes', 'DataSequenceInOrder': 'Yes', 'MaxRecvDataSegmentLength': '262144'}
COMMANDS_MAX = 128  # Its node.session.cmds_max.


def test_linux_open_iscsi_defaults(t):
    """Its keys are agreed to as offered, and 128 commands may be in flight at once."""
    daemon = t.daemon()
    linux = Host(t, daemon, **OPEN_ISCSI)
    answers = linux.peer.answers
    for key, value in OPEN_ISCSI.items():
        if key in ('IFMarker', 'OFMarker', 'MaxRecvDataSegmentLength'):
            continue
        t.check(answers.get(key) == value, f'{key}={value} was answered {answers.get(key)}')
    t.check(int(answers['MaxRecvDataSegmentLength']) >= 262144, str(answers))
    window = linux.peer.max_cmd_sn - linux.peer.exp_cmd_sn + 1
    t.check(window >= COMMANDS_MAX, f'a window of {window} commands')
    linux.attentions()
    t.check(linux.write(0, b'\x5a' * 65536).good, 'a write with 64 KiB of immediate data')
    tags = [linux.start(host.read_10(8 * number, 8), 4096, read=True)
            for number in range(COMMANDS_MAX)]
    replies = [linux.finish(tag) for tag in tags]
    t.check(all(reply.good and len(reply.data) == 4096 for reply in replies), 'all are answered')
    t.check(replies[3].data == b'\x5a' * 4096, 'with the data that were written')


def test_linux_multipath_is_two_sessions(t):
    """Two sessions through two portals: one unit by its name, two paths by their ports."""
    daemon = t.daemon(portals=('127.0.0.1', '127.0.0.1'))
    paths = []
    for number, portal in enumerate(daemon.portals):
        address = portal.rpartition(':')
        paths.append(Host(t, daemon, isid=number + 1, portal=(address[0], int(address[2]))))
    pages = [path.good(host.inquiry(page=0x83), 255) for path in paths]
    names = [[d for d in host.designators(page) if d[1] == 0] for page in pages]
    t.check(names[0] == names[1] and names[0], f'names of the unit: {names}')
    ports = [[d for d in host.designators(page) if d[1] == 1] for page in pages]
    t.check(ports[0] != ports[1], 'two ports have one name')
    for path in paths:
        path.attentions()
    t.check(paths[0].write(7, b'\x17' * 4096).good, 'a write on one path')
    t.check(paths[1].read(7, 8).data == b'\x17' * 4096, 'is read on the other')
    paths[0].close()
    t.check(paths[1].read(7, 8).data == b'\x17' * 4096, 'and goes on when the first is lost')


def test_linux_disk_probes(t):
    """Everything that sd asks of a disk is answered, with or without data left over."""
    daemon = t.daemon()
    linux = Host(t, daemon, **OPEN_ISCSI)
    t.check(len(linux.good(host.inquiry(36), 36)) == 36, 'INQUIRY of 36 bytes')
    linux.attentions()
    capacity = linux.good(host.read_capacity_16(), 32)
    t.check(struct.unpack('>QI', capacity[:12]) == (64 * MIB // 512 - 1, 512), capacity.hex())
    t.check(capacity[14] & 0x80, 'LBPME is not set')
    pages = linux.good(host.inquiry(page=0), 255)[4:]
    t.check({0xb0, 0xb1, 0xb2} <= set(pages), pages.hex())
    limits = linux.good(host.inquiry(64, 0xb0), 64)
    unmap_blocks, unmap_descriptors = struct.unpack('>II', limits[20:28])
    t.check(unmap_blocks and unmap_descriptors, f'no limits of UNMAP: {limits.hex()}')
    linux.good(host.inquiry(64, 0xb1), 64)
    provisioning = linux.good(host.inquiry(64, 0xb2), 64)
    t.check(provisioning[5] & 0xe0 == 0xe0, f'LBPU, LBPWS, LBPWS10: {provisioning.hex()}')
    for opcode in (0x12, 0x41, 0x93):  # INQUIRY, WRITE SAME (10), WRITE SAME (16)
        cdb = struct.pack('>BBBBHIBB', 0xa3, 0x0c, 1, opcode, 0, 512, 0, 0)
        answer = linux.good(cdb, 512)
        t.check(answer[1] & 7 == 3, f'opcode {opcode:#x} is not reported: {answer.hex()}')
    header = linux.good(bytes([0x1a, 0, 0x3f, 0, 4, 0]), 4)
    t.check(header[2] & 0x10, 'no DPOFUA')
    caching = linux.good(bytes([0x1a, 8, 0x08, 0, 4, 0]), 4)
    caching = linux.good(bytes([0x1a, 8, 0x08, 0, caching[0] + 1, 0]), caching[0] + 1)
    t.check(caching[4] & 0x3f == 8 and caching[6] & 4, f'no WCE: {caching.hex()}')
    t.check(linux.command(struct.pack('>BBIBHB', 0x35, 0, 0, 0, 0, 0)).good, 'SYNCHRONIZE CACHE')


SET = '''
[faults]
enabled = true

[[drive]]
name = "d0"
memory = true
size = "128MiB"

[[raid]]
name = "one"
level = "raid0"
drives = ["d0"]
'''


def test_linux_escalation_with_a_drive_that_hangs(t):
    """Ping, abort, LU reset, target reset, a new session, and the end: each is answered while
    the drive is not; another unit does not notice."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'},
                       {'name': 'stuck', 'size': '32MiB', 'raid': 'one'}], extra=SET)
    other = Host(t, daemon, 'disk')
    other.attentions()
    linux = Host(t, daemon, 'stuck', InitialR2T='No')
    linux.attentions()
    t.check(linux.write(0, b'\1' * 4096).good, 'the drive is good at first')
    daemon.sandbay('fault', 'add', 'at=drive:d0', 'do=stall', 'for=1min')
    sent = []
    for number in range(16):
        cmd_sn = linux.cmd_sn
        sent.append((linux.start(host.write_10(64 * number, 8), data=b'\2' * 4096), cmd_sn))
    linux.ping()
    for tag, cmd_sn in sent[:2]:
        result = linux.manage(host.ABORT_TASK, task=tag, ref_cmd_sn=cmd_sn)
        t.check(result == host.COMPLETE, f'ABORT TASK: response {result}')
    for function in (host.LOGICAL_UNIT_RESET, host.WARM_RESET):
        result = linux.manage(function)
        t.check(result == host.COMPLETE, f'function {function}: response {result}')
        t.check(other.write(0, b'\3' * 4096).good, 'another unit is disturbed')
    t.check(not any(linux.waiting.get(tag) for tag, _ in sent), 'an aborted command was answered')
    linux.start(host.write_10(0, 8), data=b'\4' * 4096)
    again = Host(t, daemon, 'stuck')
    t.check(linux.peer.closed(), 'the old session goes on beside the new one')
    again.ping()
    again.good(host.inquiry(96), 96)
    t.check(other.read(0, 8).data == b'\3' * 4096, 'another unit is disturbed')
    rows = daemon.sandbay_json('session', 'list')['sessions']
    t.check(len(rows) == 2, f'{len(rows)} sessions are there, not 2')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_linux_bad_bursts_that_are_irrelevant(t):
    """FirstBurstLength above MaxBurstLength where no unsolicited data can come, and both in
    discovery: answered Irrelevant, not refused."""
    daemon = t.daemon()
    linux = Host(t, daemon, InitialR2T='Yes', ImmediateData='No', FirstBurstLength='262144',
                 MaxBurstLength='8192')
    t.check(linux.peer.answers.get('FirstBurstLength') == 'Irrelevant', str(linux.peer.answers))
    t.check(linux.peer.answers.get('MaxBurstLength') == '8192', str(linux.peer.answers))
    linux.attentions()
    finder = wire.Peer(daemon.address())
    offer = wire.text(InitiatorName=host.ME, SessionType='Discovery', FirstBurstLength='16777215',
                      MaxBurstLength='512')
    finder.send(wire.login_request(offer, isid=9))
    header, data = finder.receive()
    t.check(header[36:38] == b'\0\0', f'discovery: status {header[36:38].hex()}')
    for key in (b'FirstBurstLength', b'MaxBurstLength'):
        t.check(key + b'=Irrelevant\0' in data, repr(data))
