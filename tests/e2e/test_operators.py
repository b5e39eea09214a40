"""What people who run other targets suffer from: each test is one such complaint, which must not
be heard here.
"""
import concurrent.futures
import os
import struct
import time

import harness
import host
from host import Host

MIB, TIB = 1 << 20, 1 << 40
LUNS_CHANGED = 0x3f0e


def sessions(daemon):
    return daemon.sandbay_json('session', 'list')['sessions']


def drives(count, level, spares=0):
    """Configuration of a set `set` of drives in memory, with faults allowed."""
    text = '\n[faults]\nenabled = true\n'
    for number in range(count + spares):
        text += f'\n[[drive]]\nname = "d{number}"\nmemory = true\nsize = "128MiB"\n'
        text += 'spare = true\n' if number >= count else ''
    names = ', '.join(f'"d{number}"' for number in range(count))
    return text + f'\n[[raid]]\nname = "set"\nlevel = "{level}"\ndrives = [{names}]\n'


def many_luns(count):
    """Volumes that are the LUNs 0 to count - 1 of one target."""
    return [{'name': 'disk' if number == 0 else f'v{number}', 'size': '1MiB', 'memory': True,
             'target': harness.NAME_PREFIX + 'disk', 'lun': number} for number in range(count)]


# Many of everything ---------------------------------------------------------------------------

def test_lun_added_to_a_client_with_over_100_luns(t):
    """It is told once, and stays logged in: with REPORT LUNS all units are told; a host that
    does not ask is told once by each unit and loses no command."""
    count = 120
    daemon = t.daemon(many_luns(count))
    asks, silent = Host(t, daemon, isid=1), Host(t, daemon, isid=2)
    for number in range(count):
        asks.attentions(number)
        silent.attentions(number)
    t.check(asks.write(0, b'\x21' * 4096, lun=77).good, 'a write before')
    daemon.sandbay('volume', 'create', 'more', '--size', '1MiB', '--memory', '--target',
                   harness.NAME_PREFIX + 'disk', '--lun', count)
    told = asks.command(host.TEST_UNIT_READY, lun=5)
    t.check(told.additional == LUNS_CHANGED, f'LUN 5: {told!r}')
    t.check(host.luns_of(asks.good(host.report_luns(), 4096)) == list(range(count + 1)), 'list')
    for number in range(count):
        # The units learn of the report within a turn or two.
        t.until(lambda number=number: asks.command(host.TEST_UNIT_READY, lun=number).good,
                f'LUN {number} is ready', 5)
    t.check(asks.read(0, 8, lun=77).data == b'\x21' * 4096, 'what was written before')
    for number in range(count):
        t.check(silent.attentions(number) == [LUNS_CHANGED], f'LUN {number}: told otherwise')
        t.check(silent.read(0, 1, lun=number).good, f'LUN {number}: a read')
    asks.ping()
    silent.ping()
    t.check(len(sessions(daemon)) == 2, f'{len(sessions(daemon))} sessions, not the same 2')


def test_80_targets_come_and_go_under_their_sessions(t):
    """Eighty targets made, used and deleted by force with a command in flight on each: nothing
    hangs, no session is left, and another goes on."""
    daemon = t.daemon()
    other = Host(t, daemon)
    other.attentions()

    def create(number):
        daemon.sandbay('volume', 'create', f'v{number}', '--size', '1MiB', '--initiator', '*')

    def delete(number):
        daemon.sandbay('volume', 'delete', '--force', f'v{number}')
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(80)))
        hosts = [Host(t, daemon, f'v{number}') for number in range(80)]
        for each in hosts:
            each.attentions()
            each.start(host.write_10(0, 1024))  # Its data never come.
        t.check(len(sessions(daemon)) == 81, f'{len(sessions(daemon))} sessions')
        list(pool.map(delete, range(80)))
    for number, each in enumerate(hosts):
        t.check(each.peer.closed(), f'the session with v{number} goes on')
    t.until(lambda: len(sessions(daemon)) == 1, 'only the other session is left')
    t.check(other.write(0, b'\1' * 512).good, 'it goes on')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def reactors_of(rows, target):
    name = harness.NAME_PREFIX + target
    return [c['reactor'] for row in rows if row['target'] == name for c in row['connections']]


def test_connections_use_every_reactor(t):
    """Sessions of one connection with one volume, sessions with several volumes, connections of
    one session: none of these leaves a reactor idle."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB', 'memory': True},
                       {'name': 'other', 'size': '64MiB', 'memory': True}], reactors=2)
    hosts = [Host(t, daemon, isid=isid) for isid in range(8)]
    for each in hosts:
        each.attentions()
    found = reactors_of(sessions(daemon), 'disk')
    t.check(sorted(found) == [0] * 4 + [1] * 4, f'eight sessions with one volume: {found}')
    for number, each in enumerate(hosts):
        t.check(each.write(8 * number, bytes([number + 1]) * 4096).good, f'write of {number}')
    for number, each in enumerate(hosts):
        wanted = bytes([(number + 3) % 8 + 1]) * 4096
        t.check(each.read((number + 3) % 8 * 8, 8).data == wanted, f'read of {number}')
        each.close()
    t.until(lambda: not sessions(daemon), 'the sessions end')
    pair = [Host(t, daemon, name) for name in ('disk', 'other')]
    found = [reactors_of(sessions(daemon), name) for name in ('disk', 'other')]
    t.check(sorted(found) == [[0], [1]], f'a session with each of two volumes: {found}')
    for each in pair:
        each.close()
    t.until(lambda: not sessions(daemon), 'the sessions end')
    t.start(t.program('sandbay'), 'load', '--connections', '4', '--duration', '5s', daemon.url())
    found = t.until(lambda: (lambda each: each if len(each) == 4 else None)(
        reactors_of(sessions(daemon), 'disk')), 'four connections')
    t.check(sorted(found) == [0, 0, 1, 1], f'four connections of a session: {found}')


def test_two_luns_of_one_target_run_on_two_reactors(t):
    daemon = t.daemon(many_luns(6), reactors=2)
    rows = daemon.sandbay_json('volume', 'list')['volumes']
    found = sorted(row['reactor'] for row in rows)
    t.check(found == [0, 0, 0, 1, 1, 1], f'six LUNs: {found}')
    both = Host(t, daemon)
    for number in range(6):
        both.attentions(number)
        t.check(both.write(3, bytes([number]) * 4096, lun=number).good, f'LUN {number}: a write')
    for number in range(6):
        t.check(both.read(3, 8, lun=number).data == bytes([number]) * 4096, f'LUN {number}')


def test_quick_format_of_a_huge_thin_disk(t):
    """A host that unmaps a whole thin disk of 8 TiB, run by run as large as may be, comes to an
    end, and takes no space doing it."""
    size = 8 * TIB
    daemon = t.daemon([{'name': 'disk', 'size': '8TiB'}])
    windows = Host(t, daemon)
    windows.attentions()
    before = daemon.stored_bytes()
    limits = windows.good(host.inquiry(64, 0xb0), 64)
    most = struct.unpack('>I', limits[20:24])[0]
    commands = -(-(size // host.BLOCK) // most)
    t.check(commands <= 20000, f'{commands} commands for 8 TiB')
    started, tags = time.monotonic(), []
    for number in range(commands):
        blocks = min(most, size // host.BLOCK - number * most)
        cdb, data = host.unmap([(number * most, blocks)])
        tags.append(windows.start(cdb, data=data))
        if len(tags) == 32:
            t.check(all(windows.finish(tag).good for tag in tags), f'UNMAP up to {number}')
            tags = []
    t.check(all(windows.finish(tag).good for tag in tags), 'UNMAP at the end')
    t.say(f'{commands} UNMAP commands in {time.monotonic() - started:.1f} s')
    t.check(daemon.stored_bytes() - before < 64 * MIB, 'space was taken')


# What does not answer -------------------------------------------------------------------------

def test_login_while_every_drive_hangs(t):
    """Commands that are stuck keep nobody from logging in, from being discovered, from asking
    what there is, or the daemon from ending."""
    t.need('iscsi-ls')
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB', 'raid': 'set'},
                       {'name': 'good', 'size': '16MiB'}], extra=drives(4, 'raid10'))
    stuck = Host(t, daemon)
    stuck.attentions()
    daemon.sandbay('fault', 'add', 'at=drive', 'do=stall', 'for=1min')
    for number in range(16):
        stuck.start(host.write_10(64 * number, 8), data=b'\1' * 4096)
    t.until(lambda: sessions(daemon)[0]['commands_in_flight'] == 16, 'sixteen writes are stuck')
    for isid in range(2, 6):
        late = Host(t, daemon, isid=isid)
        late.good(host.inquiry(96), 96)
        late.good(host.report_luns(), 256)
        late.ping()
    t.check('disk' in t.run('iscsi-ls', f'iscsi://{daemon.portal}', seconds=10).stdout, 'discovery')
    good = Host(t, daemon, 'good')
    good.attentions()
    t.check(good.write(0, b'\2' * 4096).good, 'another volume')
    stuck.ping()
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_abort_task_set_while_drives_fail(t):
    """Drives that are slow, hang and fail under a RAID 6, and a host that aborts all the while:
    every function is answered, and what is written afterwards is there."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB', 'raid': 'set'}],
                      extra=drives(6, 'raid6'))
    impatient = Host(t, daemon, seconds=60)
    impatient.attentions()
    rules = (('at=drive', 'do=slow', 'latency=300ms', 'for=2s'),
             ('at=drive:d0', 'do=stall', 'for=3s'), ('at=drive:d1', 'do=fail'),
             ('at=drive:d2', 'do=stall', 'for=3s'), ('at=drive:d3', 'do=fail'))
    for turn, rule in enumerate(rules):
        daemon.sandbay('fault', 'add', *rule)
        for function in (host.ABORT_TASK_SET, host.CLEAR_TASK_SET, host.LOGICAL_UNIT_RESET):
            for number in range(24):
                lba = 256 * number + 8 * turn
                if number % 3:
                    impatient.start(host.write_10(lba, 8), data=b'\x33' * 4096)
                else:
                    impatient.start(host.read_10(lba, 2048), MIB, read=True)
            result = impatient.manage(function)
            t.check(result == host.COMPLETE, f'{rule}, function {function}: response {result}')
    impatient.ping()
    impatient.attentions()

    def written():
        return impatient.write(0, b'\x44' * 65536).good  # BUSY while an old write is stuck.
    t.until(written, 'a write afterwards', 30)
    t.check(impatient.read(0, 128).data == b'\x44' * 65536, 'is there')
    states = {row['name']: row for row in daemon.sandbay_json('drive', 'list')['drives']}
    t.check(states['d1']['use'] == 'failed' and states['d3']['use'] == 'failed', str(states))


def test_replaced_drive_cuts_no_session(t):
    """A drive fails and another takes its place: the volumes on its set and all others are used
    all the while, on the connections that were there before."""
    volumes = [{'name': 'disk', 'size': '64MiB', 'raid': 'set'},
               {'name': 'same', 'size': '32MiB', 'raid': 'set'},
               {'name': 'other', 'size': '16MiB'}]
    daemon = t.daemon(volumes, extra=drives(4, 'raid5', spares=1))
    hosts = [Host(t, daemon, volume['name'], seconds=60) for volume in volumes]
    turn = 0

    def use():
        nonlocal turn
        turn += 1
        for number, each in enumerate(hosts):
            data = bytes([turn % 251, number]) * 2048
            t.check(each.write(8 * turn, data).good, f'turn {turn}: a write on {number}')
            t.check(each.read(8 * turn, 8).data == data, f'turn {turn}: a read of {number}')
        return turn

    def whole():
        use()
        shown = daemon.sandbay_json('raid', 'show', 'set')
        return all(role['state'] == 'active' and not role['stale_regions']
                   for role in shown['roles'])
    for each in hosts:
        each.attentions()
    before = sorted(row['tsih'] for row in sessions(daemon))
    use()
    daemon.sandbay('drive', 'fail', 'd2')
    t.until(whole, 'the spare has taken its place', 60)
    shown = daemon.sandbay_json('raid', 'show', 'set')
    t.check(shown['roles'][2]['drive'] == 'd4', str(shown['roles']))
    for _ in range(20):
        use()
    t.check(sorted(row['tsih'] for row in sessions(daemon)) == before, 'sessions have changed')


def test_vanished_peer_leaves_no_orphan(t):
    """A host that is gone without a word, with writes begun: its session ends by itself."""
    limits = '\n[limits]\nnop_in_interval = "1s"\nnop_in_timeout = "1s"\n'
    daemon = t.daemon(extra=limits)
    gone, stays = Host(t, daemon, isid=1), Host(t, daemon, isid=2)
    gone.attentions()
    gone.start(host.write_10(0, 2048))  # It neither sends the data nor answers pings.

    def one_is_left():
        stays.ping()
        return len(sessions(daemon)) == 1
    stays.attentions()
    t.until(one_is_left, 'the session of the host that is gone ends', 30)
    t.check(stays.write(0, b'\1' * 4096).good, 'the other one goes on')


# Clients that come back -----------------------------------------------------------------------

def client_and(t, daemon, trouble, what, volume='disk'):
    """A libiscsi client writes, meets `trouble` while it waits, and reads what it wrote."""
    pipe, log = t.path(f'commands-{what}'), f'client-{what}.log'
    os.mkfifo(pipe)
    client = t.start('bash', '-c', f'exec qemu-io -f raw {daemon.url(volume)} <{pipe}', log=log)

    def has_written():
        with open(t.path(log), encoding='utf-8') as stream:
            return 'wrote' in stream.read()
    with open(pipe, 'w', encoding='ascii') as commands:
        commands.write('write -P 90 0 1M\nflush\n')
        commands.flush()
        row = t.until(lambda: next(iter(sessions(daemon)), None), f'{what}: a session')
        t.until(has_written, f'{what}: it has written')
        trouble(row)
        commands.write('write -P 91 1M 1M\nread -P 90 0 1M\nread -P 91 1M 1M\nquit\n')
    t.check(client.wait(60) == 0, f'{what}: the client ended with {client.returncode}')
    with open(t.path(log), encoding='utf-8') as stream:
        text = stream.read()
    t.check(text.count('read 1048576/1048576') == 2 and 'failed' not in text, f'{what}: {text}')


def test_client_survives_asynchronous_messages(t):
    """A libiscsi client that is asked to log out, told of drops, or asked to negotiate comes back
    by itself and finds its data; nobody is asked to log out unless the operator says so."""
    t.need('qemu-io')
    daemon = t.daemon()
    client_and(t, daemon, lambda row: daemon.sandbay('session', 'drop', row['tsih'],
                                                     '--logout-request', 5), 'asked')
    client_and(t, daemon, lambda row: daemon.sandbay('session', 'drop', row['tsih']), 'dropped')
    client_and(t, daemon, lambda row: daemon.sandbay(
        'session', 'drop', row['tsih'], '--connection', row['connections'][0]['cid']), 'cut')
    client_and(t, daemon, lambda row: daemon.sandbay('session', 'negotiate', row['tsih']),
               'negotiated')
    watcher = Host(t, daemon)
    watcher.attentions()
    row = next(iter(sessions(daemon)))
    drop = t.start(t.program('sandbay'), '--management', f'http://{daemon.management}', 'session',
                   'drop', str(row['tsih']), log='drop.log')
    event = watcher.next_event()
    t.check(event == 3, f'event {event}, not that the session is dropped')
    watcher.close()
    t.check(drop.wait(30) == 0, 'the drop')


def test_client_goes_on_after_a_crash(t):
    """kill -9 and a new start: the client's next commands are served, none of them frozen."""
    t.need('qemu-io')
    daemon = t.daemon()

    def crash(_):
        daemon.kill()
        daemon.start()
    started = time.monotonic()
    client_and(t, daemon, crash, 'crash')
    t.say(f'the client was served again within {time.monotonic() - started:.1f} s')


def test_host_that_reconnects_for_ever(t):
    """A host whose connection breaks again and again, with writes begun each time: it is let in
    each time, and leaves nothing behind."""
    daemon = t.daemon()
    for turn in range(30):
        again = Host(t, daemon, isid=5)
        again.attentions()
        t.check(again.write(0, bytes([turn + 1]) * 4096).good, f'turn {turn}: a write')
        again.start(host.write_10(64, 1024))
        if turn % 2:
            again.close()
    t.until(lambda: len(sessions(daemon)) <= 1, 'one session at most is left')
    last = Host(t, daemon, isid=5)
    last.attentions()
    t.check(last.read(0, 8).data == bytes([30]) * 4096, 'the last write is there')
    t.until(lambda: len(sessions(daemon)) == 1, 'one session')
    volume = daemon.sandbay_json('volume', 'show', 'disk')
    t.check(volume['counters']['in_flight'] == 0, f'commands are left over: {volume["counters"]}')
