"""The door that initiators use: logins go on from the group's portal to the members', connections
leave a member with it, and a thousand sessions stay.
"""
import resource
import selectors
import time

import wire
from harness import NAME_PREFIX, PORTS
from raid_lab import Load, events
from test_members import first, member, the_member
from test_operators import client_and, sessions
from test_pool import pool, require_whole

LOGIN_REDIRECTED = 0x0101


def portal_text(section, port, **keys):
    return (f'[[{section}]]\nlisten = "127.0.0.1:{port}"\n' +
            ''.join(f'{key} = "{value}"\n' for key, value in keys.items()))


def balanced(t, **options):
    """A daemon with two members in one pool, each with a portal, and the members' ports."""
    ports = {name: PORTS.take() for name in ('array1', 'two')}
    extra = (portal_text('portal', ports['array1'], member='array1') + first() + member('two') +
             portal_text('member.portal', ports['two']) +
             pool().replace('page', 'members = ["array1", "two"]\npage'))
    return t.daemon([{'name': 'v', 'size': '32MiB'}], extra=extra, **options), ports


def places(daemon):
    """Whose portals the connections came to; '' for the group's."""
    return sorted(connection['member'] for session in sessions(daemon) if session['target']
                  for connection in session['connections'])


def left(t, daemon, name):
    t.until(lambda: the_member(daemon, name)['state'] == 'present', f'{name} leaves', 90)


def test_connections_come_to_members_and_leave_with_them(t):
    for reactors in (1, 2):
        daemon, ports = balanced(t, reactors=reactors)
        group = daemon.sandbay_json('group', 'show')['portals']
        t.check([portal['member'] for portal in group] == ['', 'array1', 'two'], f'{group}')
        status = wire.Peer(daemon.address()).login(f'{NAME_PREFIX}v')
        t.check(status == LOGIN_REDIRECTED, f'the group sends logins on: {status:#x}')
        status = wire.Peer(('127.0.0.1', ports['two'])).login(f'{NAME_PREFIX}v')
        t.check(status == 0, f'a member serves who comes to it: {status:#x}')
        t.until(lambda: not sessions(daemon), 'the hand-written peers are gone')
        load = Load(t, daemon.url('v'), '--queue-depth', '4', '--rate', '200', '--block-size',
                    '16KiB', '--connections', '2', '--sessions', '2')
        t.until(lambda: places(daemon) == ['array1', 'array1', 'two', 'two'],
                f'four connections are balanced, not {places(daemon)}')
        for name, other in (('two', 'array1'), ('array1', 'two')):
            started = time.monotonic()
            daemon.sandbay('member', 'remove', name)
            t.until(lambda: places(daemon) == [other] * 4, f'all go to {other}, after {name}')
            t.say(f'{reactors} reactors: four connections moved within '
                  f'{time.monotonic() - started:.2f} s')
            left(t, daemon, name)
            shown = the_member(daemon, name)['portals'][0]
            t.check(not shown['takes_logins'] and shown['connections'] == 0, f'{shown}')
            status = wire.Peer(('127.0.0.1', ports[name])).login(f'{NAME_PREFIX}v')
            t.check(status == LOGIN_REDIRECTED, f'its portal sends logins on: {status:#x}')
            load.require_running(f'while {name} leaves')
            daemon.sandbay('member', 'add', name)
        told = [event['text'] for event in events(daemon) if 'portals' in event['text']]
        t.check(len(told) == 2 and all('of which 0 had to be dropped' in text for text in told),
                f'what is told: {told}')
        load.require_good()
        require_whole(t, daemon, 'at the end')
        t.check(daemon.terminate() == 0, 'an orderly end')


def test_libiscsi_follows_and_moves(t):
    """An initiator that is not ours finds the member's portal, leaves it when it is asked, and
    finds the other."""
    t.need('qemu-io', 'iscsi-ls')
    daemon, ports = balanced(t)
    listed = t.run('iscsi-ls', f'iscsi://{daemon.portal}').stdout
    t.check(daemon.portal in listed, f'the group is named: {listed}')
    t.check(not any(str(port) in listed for port in ports.values()), f'and no member: {listed}')

    def leave(row):
        there = row['connections'][0]['member']
        t.check(there in ports, f'it is on a member\'s portal: {row}')
        daemon.sandbay('member', 'remove', there)
        other = next(name for name in ports if name != there)
        t.until(lambda: places(daemon) == [other], f'it goes to {other}')
    client_and(t, daemon, leave, 'moved', volume='v')


class Herd:
    """Many sessions of one process, which answers whatever the target asks."""

    def __init__(self, t, address, targets, count):
        self.t = t
        self.selector = selectors.DefaultSelector()
        self.sheep = []
        for number in range(count):
            peer = wire.Peer(address)
            status = peer.login(NAME_PREFIX + targets[number % len(targets)], isid=1 + number)
            t.check(status == 0, f'login {number}: status {status:#06x}')
            peer.socket.setblocking(False)
            peer.number, peer.read, peer.pings, peer.answers = number, b'', 0, 0
            self.selector.register(peer.socket, selectors.EVENT_READ, peer)
            self.sheep.append(peer)

    def serve(self, seconds, until=lambda: False):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            for key, _ in self.selector.select(0.1):
                self._take(key.data)

    def _take(self, peer):
        part = peer.socket.recv(65536)
        self.t.check(part, f'session {peer.number} was closed')
        peer.read += part
        while len(peer.read) >= 48:
            header = peer.read[:48]
            length = int.from_bytes(header[5:8], 'big')
            if len(peer.read) < 48 + length + -length % 4:
                return
            peer.read = peer.read[48 + length + -length % 4:]
            if header[0] & 0x3f == wire.NOP_IN:
                peer.pings += 1
                peer.socket.sendall(wire.nop_out(0xffffffff, 2, transfer_tag=int.from_bytes(
                    header[20:24], 'big')))
            else:
                self.t.check(header[0] & 0x3f in (wire.SCSI_RESPONSE, wire.DATA_IN),
                             f'session {peer.number}: {header.hex()}')
                peer.answers += 1

    def ask_all(self):
        """TEST UNIT READY on each; how many were answered within ten seconds."""
        for peer in self.sheep:
            peer.socket.sendall(wire.scsi_command(bytes(6), 7, 1))
        self.serve(10, lambda: all(peer.answers for peer in self.sheep))
        return sum(1 for peer in self.sheep if peer.answers)


def test_a_thousand_sessions_stay(t):
    """1,000 sessions over 250 volumes of a pool: each is pinged every second and answered, all are
    there in the end, and what one takes in memory is told."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [f'v{number}' for number in range(250)]
    started = time.monotonic()
    daemon = t.daemon([{'name': name, 'size': '1MiB', 'thin': True} for name in names],
                      extra=first('400MiB') + pool() +
                      '[limits]\nnop_in_interval = "1s"\nnop_in_timeout = "10s"\n')
    t.say(f'250 volumes were made and served within {time.monotonic() - started:.1f} s')
    before = daemon.resident_bytes()
    started = time.monotonic()
    herd = Herd(t, daemon.address(), names, 1000)
    t.say(f'1,000 sessions logged in within {time.monotonic() - started:.1f} s')
    herd.serve(6)
    each = (daemon.resident_bytes() - before) / 1000
    t.say(f'{each / 1024:.1f} KiB of memory a session')
    t.check(each < 64 << 10, f'{each / 1024:.1f} KiB of memory a session')
    fewest = min(peer.pings for peer in herd.sheep)
    t.say(f'each was pinged {fewest} times at least in 6 s')
    t.check(fewest >= 2, f'one was pinged {fewest} times in 6 s')
    started = time.monotonic()
    listed = sessions(daemon)
    t.say(f'all were listed within {time.monotonic() - started:.2f} s')
    t.check(len(listed) == 1000 and len({row['target'] for row in listed}) == 250,
            f'{len(listed)} sessions are there')
    answered = herd.ask_all()
    t.check(answered == 1000, f'{answered} of 1,000 sessions answer')
    for peer in herd.sheep:
        peer.close()
    t.until(lambda: not sessions(daemon), 'all are gone when their initiators are', 15)
    t.check(daemon.terminate() == 0, 'an orderly end')
