"""Persistent reservations as clusters use them: what fence_scsi does and what Windows validates,
each as commands of two hosts, of which one dies; what outlives the daemon; and the operator."""
import struct
import urllib.request

import sg
from host import CHECK_CONDITION, GOOD, RESERVATION_CONFLICT, TEST_UNIT_READY, Host

REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT, REGISTER_AND_IGNORE = range(7)
REPLACE_LOST = 8
LOST = 0x4401
READ_KEYS, READ_RESERVATION, REPORT_CAPABILITIES, READ_FULL_STATUS = range(4)
WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5
RESERVATIONS_PREEMPTED, RESERVATIONS_RELEASED, REGISTRATIONS_PREEMPTED = 0x2a03, 0x2a04, 0x2a05
KILLS = 50
A, B = 'iqn.2026-11.org.sandbay:node-a', 'iqn.2026-11.org.sandbay:node-b'
BLOCK = bytes(range(256)) * 2


def reserve_out(host, action, key=0, action_key=0, kind=0, keep=False):
    """The status."""
    data = struct.pack('>QQIBBH', key, action_key, 0, 0x01 if keep else 0, 0, 0)
    cdb = struct.pack('>BBBHIB', 0x5f, action, kind, 0, len(data), 0)
    reply = host.command(cdb, data=data)
    host.t.check(not reply.good or reply.flags & 6 == 0, f'a residual: {reply!r}')
    return reply.status


def reserve_in(host, action, length=8192):
    return host.good(struct.pack('>BBBIHB', 0x5e, action, 0, 0, length, 0), length)


def keys(host):
    data = reserve_in(host, READ_KEYS)
    return sorted(struct.unpack_from('>Q', data, at)[0] for at in range(8, len(data), 8))


def reservation(host):
    """(Key, type), or nothing."""
    data = reserve_in(host, READ_RESERVATION)
    return (struct.unpack_from('>Q', data, 8)[0], data[21]) if len(data) > 8 else None


def metrics_of(daemon):
    with urllib.request.urlopen(f'http://{daemon.management}/metrics', timeout=20) as answer:
        return answer.read().decode()


def must(t, got, wanted, what):
    t.check(got == wanted, f'{what}: {got!r} instead of {wanted!r}')


def log_in(t, daemon, name, isid=1):
    host = Host(t, daemon, name=name, isid=isid)
    host.attentions()
    return host


def test_fencing_as_fence_scsi_does_it(t):
    """Nodes register and share a reservation of registrants; one dies and is fenced."""
    daemon = t.daemon()
    one, other = log_in(t, daemon, A), log_in(t, daemon, B)
    for host, key in ((one, 0x10001), (other, 0x10002)):
        must(t, reserve_out(host, REGISTER_AND_IGNORE, action_key=key, keep=True), GOOD, 'register')
    kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY
    must(t, reserve_out(one, RESERVE, 0x10001, kind=kind), GOOD, 'reserve')
    must(t, reserve_out(other, RESERVE, 0x10002, kind=kind), RESERVATION_CONFLICT, 'the second')
    for host in one, other:
        must(t, host.write(0, BLOCK).status, GOOD, 'a registered node writes')
    stranger = log_in(t, daemon, 'iqn.2026-11.org.sandbay:stranger')
    must(t, stranger.write(0, BLOCK).status, RESERVATION_CONFLICT, 'a stranger writes')
    must(t, stranger.read(0, 1).status, GOOD, 'a stranger reads')
    # It dies with a session that nobody ends; the other node fences it.
    must(t, keys(other), [0x10001, 0x10002], 'keys')
    must(t, reserve_out(other, PREEMPT_AND_ABORT, 0x10002, 0x10001, kind), GOOD, 'fence')
    must(t, keys(other), [0x10002], 'keys')
    must(t, reservation(other), (0x10002, kind), 'reservation')
    must(t, one.command(TEST_UNIT_READY).additional, REGISTRATIONS_PREEMPTED, 'what it hears')
    must(t, one.write(0, BLOCK).status, RESERVATION_CONFLICT, 'the fenced node writes')
    one.close()
    again = log_in(t, daemon, A, isid=7)
    must(t, again.write(0, BLOCK).status, RESERVATION_CONFLICT, 'and after it comes back')
    # Unfenced, it registers anew.
    must(t, reserve_out(again, REGISTER_AND_IGNORE, action_key=0x10001, keep=True), GOOD, 'unfence')
    must(t, again.write(0, BLOCK).status, GOOD, 'and writes')


def test_what_windows_validates(t):
    """The cluster validation's steps at one disk with two nodes."""
    daemon = t.daemon()
    one, other = log_in(t, daemon, A), log_in(t, daemon, B)
    kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY
    capabilities = reserve_in(one, REPORT_CAPABILITIES)
    t.check(capabilities[2] & 0x01 and capabilities[4] & 0x20, capabilities.hex())
    must(t, reserve_out(one, RESERVE, 1, kind=kind), RESERVATION_CONFLICT, 'without registration')
    must(t, reserve_out(one, REGISTER, 0, 1), GOOD, 'register')
    must(t, reserve_out(one, REGISTER, 9, 2), RESERVATION_CONFLICT, 'with a wrong key')
    must(t, reserve_out(one, RESERVE, 1, kind=kind), GOOD, 'reserve')
    must(t, reserve_out(other, REGISTER, 0, 2), GOOD, 'the second registers')
    must(t, reserve_out(other, RESERVE, 2, kind=kind), RESERVATION_CONFLICT, 'the second reserves')
    must(t, other.write(1, BLOCK).status, GOOD, 'the second writes')
    # Release and take over.
    must(t, reserve_out(one, RELEASE, 1, kind=1), CHECK_CONDITION, 'another type')
    must(t, reserve_out(one, RELEASE, 1, kind=kind), GOOD, 'release')
    must(t, other.command(TEST_UNIT_READY).additional, RESERVATIONS_RELEASED, 'the second hears')
    must(t, reserve_out(other, RESERVE, 2, kind=kind), GOOD, 'the second reserves')
    must(t, reserve_out(one, PREEMPT, 1, 2, kind), GOOD, 'the first preempts')
    must(t, other.command(TEST_UNIT_READY).additional, REGISTRATIONS_PREEMPTED, 'the second hears')
    must(t, other.write(1, BLOCK).status, RESERVATION_CONFLICT, 'the second writes')
    # A reservation outlives the session of its holder.
    one.close()
    must(t, reservation(other), (1, kind), 'while its holder is offline')
    one = log_in(t, daemon, A)
    must(t, one.write(1, BLOCK).status, GOOD, 'its holder writes')
    must(t, reserve_out(other, REGISTER, 0, 2), GOOD, 'the second registers')
    must(t, reserve_out(other, CLEAR, 2), GOOD, 'and clears')
    must(t, one.command(TEST_UNIT_READY).additional, RESERVATIONS_PREEMPTED, 'the first hears')
    must(t, (keys(one), reservation(one)), ([], None), 'nothing is left')


def test_reservations_outlive_kill_9(t):
    """Whatever had its status returns, and nothing else."""
    daemon = t.daemon()
    key = 0
    for turn in range(KILLS):
        host = log_in(t, daemon, A)
        must(t, keys(host), [key] if key else [], f'turn {turn}')
        if key:
            must(t, reservation(host), (key, 1 + 2 * (turn % 2)), f'turn {turn}')
        status = reserve_out(host, REGISTER_AND_IGNORE, 0, turn + 1, keep=True)
        must(t, status, GOOD, f'turn {turn}: register')
        key = turn + 1
        if turn:
            reserve_out(host, RELEASE, key, kind=1 + 2 * (turn % 2))
        status = reserve_out(host, RESERVE, key, kind=1 + 2 * ((turn + 1) % 2))
        must(t, status, GOOD, f'turn {turn}: reserve')
        daemon.kill()
        host.close()
        daemon.start()
    host = log_in(t, daemon, B)
    must(t, host.write(0, BLOCK).status, RESERVATION_CONFLICT, 'another host writes')
    host = log_in(t, daemon, A)
    # Without APTPL nothing outlives the daemon.
    must(t, reserve_out(host, REGISTER_AND_IGNORE, 0, 7, keep=False), GOOD, 'without APTPL')
    daemon.kill()
    daemon.start()
    must(t, keys(log_in(t, daemon, A)), [], 'without APTPL')


def test_the_operator_sees_and_clears_reservations(t):
    daemon = t.daemon()
    said = daemon.sandbay('reservation', 'list', 'disk').stdout
    t.check('no initiator is registered' in said, said)
    host, other = log_in(t, daemon, A), log_in(t, daemon, B)
    must(t, reserve_out(host, REGISTER, 0, 0xabc, keep=True), GOOD, 'register')
    must(t, reserve_out(host, RESERVE, 0xabc, kind=3), GOOD, 'reserve')
    must(t, other.read(0, 1).status, RESERVATION_CONFLICT, 'the other reads')
    said = daemon.sandbay('reservation', 'list', 'disk').stdout
    for word in ('exclusive access', f'{A},i,0x', '0x0000000000000abc', 'yes'):
        t.check(word in said, said)
    told = daemon.sandbay_json('reservation', 'list', 'disk')
    must(t, (told['type'], told['kept'], len(told['registrations'])),
         ('exclusive access', True, 1), 'JSON')
    metrics = metrics_of(daemon)
    t.check('sandbay_volume_registrations{volume="disk"} 1' in metrics, 'metrics')
    t.check('sandbay_volume_reserved{volume="disk"} 1' in metrics, 'metrics')
    no_snapshot = daemon.sandbay('reservation', 'list', 'disk', 'monday', ok=None)
    t.check(no_snapshot.returncode == 4 and 'has no snapshot "monday"' in no_snapshot.stdout,
            no_snapshot.stdout)
    daemon.sandbay('reservation', 'clear', 'disk')
    must(t, host.command(TEST_UNIT_READY).additional, RESERVATIONS_PREEMPTED, 'the holder hears')
    must(t, other.read(0, 1).status, GOOD, 'the other reads')
    said = daemon.sandbay('audit', 'list').stdout
    t.check('DELETE /api/v1/volumes/disk/reservations' in said, said)
    refused = daemon.sandbay('reservation', 'list', 'nothing', ok=None)
    t.check(refused.returncode != 0 and 'there is no volume "nothing"' in refused.stdout,
            refused.stdout)
    daemon.kill()
    daemon.start()
    must(t, keys(log_in(t, daemon, A)), [], 'after a restart')


def test_lost_reservations_are_replaced(t):
    """Reservations that outlive the daemon are lost, as by a failed memory, until a host or the
    operator begins anew."""
    daemon = t.daemon()
    refused = daemon.sandbay('reservation', 'lose', 'disk', ok=None)
    t.check(refused.returncode != 0 and 'nothing to lose' in refused.stdout, refused.stdout)
    host, other = log_in(t, daemon, A), log_in(t, daemon, B)
    must(t, reserve_out(host, REGISTER, 0, 0xabc, keep=True), GOOD, 'register')
    must(t, reserve_out(host, RESERVE, 0xabc, kind=3), GOOD, 'reserve')
    daemon.sandbay('reservation', 'lose', 'disk')
    must(t, host.read(0, 1).additional, LOST, 'the holder reads')
    daemon.kill()
    daemon.start()
    host, other = Host(t, daemon, name=A), Host(t, daemon, name=B)
    for one in (host, other):
        must(t, one.command(TEST_UNIT_READY).key, 6, 'after a restart')
        must(t, one.read(0, 1).additional, LOST, 'it is still lost')
    said = daemon.sandbay('reservation', 'list', 'disk').stdout
    t.check('its reservations are lost' in said, said)
    disk = sg.Device(t, other)
    disk.run('sg_persist', '--out', '--replace-lost', '--param-sark=def', '--prout-type=5',
             '--param-aptpl')
    must(t, reservation(other), (0xdef, 5), 'the new one')
    must(t, host.write(0, BLOCK).status, RESERVATION_CONFLICT, 'the other is fenced')
    daemon.sandbay('reservation', 'lose', 'disk')
    daemon.sandbay('reservation', 'clear', 'disk')
    must(t, host.read(0, 1).status, GOOD, 'an operator has cleared it')


def test_sg_persist_reads_what_we_say(t):
    daemon = t.daemon()
    host, other = log_in(t, daemon, A), log_in(t, daemon, B)
    disk, second = sg.Device(t, host), sg.Device(t, other)
    said = disk.run('sg_persist', '--in', '--report-capabilities')
    for word in ('Compatible Reservation Handling(CRH): 1',
                 'Persist Through Power Loss Capable(PTPL_C): 1',
                 'Write Exclusive, All Registrants: 1', 'Exclusive Access, Registrants Only: 1'):
        t.check(word.lower() in said.lower(), said)
    disk.run('sg_persist', '--out', '--register', '--param-sark=abc')
    second.run('sg_persist', '--out', '--register-ignore', '--param-sark=def', '--param-aptpl')
    disk.run('sg_persist', '--out', '--reserve', '--param-rk=abc', '--prout-type=5')
    said = second.run('sg_persist', '--in', '--read-reservation')
    for word in ('Key=0xabc', 'Write Exclusive, registrants only'):
        t.check(word.lower() in said.lower(), said)
    said = second.run('sg_persist', '--in', '--read-full-status')
    for word in ('Key=0xabc', 'Key=0xdef', f'{A},i,0x', f'{B},i,0x', '<< Reservation holder >>'):
        t.check(word.lower() in said.lower(), said)
    done = second.run('sg_persist', '--out', '--reserve', '--param-rk=def', '--prout-type=5',
                      ok=False)
    t.check('reservation conflict' in done.stdout.lower(), done.stdout)
    second.run('sg_persist', '--out', '--preempt-abort', '--param-rk=def', '--param-sark=abc',
               '--prout-type=6')
    said = second.run('sg_persist', '--in', '--read-keys')
    t.check('1 registered reservation key' in said and '0xdef' in said, said)
    said = second.run('sg_opcodes')
    for word in ('Persistent reserve in, read full status',
                 'Persistent reserve out, register and move'):
        t.check(word.lower() in said.lower(), said)
