"""Pools over iSCSI: volumes keep their data through kills of the daemon, thin volumes tell the
truth about their space, snapshots are one moment, and a set that is away takes its own volumes
alone.
"""
import os
import time
import urllib.request

from host import BLOCK, TEST_UNIT_READY, Host, inquiry, luns_of, read_10, report_luns
from raid_lab import Load, drives, events, image, kinds, raid, require_same, write

NVRAM = '[nvram]\nsize = "32MiB"\npower_loss_only_emulated = true\n'
CACHE = '[cache]\nmemory = "32MiB"\nnvram = "18MiB"\n'


def pool(name='p', page='1MiB'):
    return f'[[pool]]\nname = "{name}"\npage = "{page}"\n'


def two_sets(size='96MiB'):
    names = [f'd{i}' for i in range(4)]
    return (drives(names, size) + raid('a', 'raid1', names[:2], journal='1MiB') +
            raid('b', 'raid1', names[2:], journal='1MiB'))


def the_volume(daemon, name):
    return daemon.sandbay_json('volume', 'show', name)


def the_pool(daemon, name='p'):
    return daemon.sandbay_json('pool', 'show', name)


def require_whole(t, daemon, when):
    """The whole map is right."""
    checked = daemon.sandbay_json('group', 'check')['pools']
    t.check(checked and all(not one['wrong'] for one in checked), f'{when}: {checked}')


def qemu_io(t, daemon, volume, *commands, ok=True):
    words = [word for command in commands for word in ('-c', command)]
    return t.run('qemu-io', '-f', 'raw', *words, daemon.url(volume), ok=ok)


def test_pool_volumes_survive_kills_under_load(t):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon([{'name': 'thick', 'size': '48MiB'},
                       {'name': 'thin', 'size': '1GiB', 'thin': True}],
                      extra=two_sets() + NVRAM + CACHE + pool())
    shown = the_pool(daemon)
    t.check(len(shown['stores']) == 2 and shown['map_in_nvram'], f'a pool of two sets: {shown}')
    data = image(t, 'data', 16, 1)
    write(t, daemon, data, 'thick')
    loads = [Load(t, daemon.url('thick'), '--queue-depth', '4', '--rate', '300', '--offset',
                  '16MiB', '--block-size', '16KiB'),
             Load(t, daemon.url('thin'), '--queue-depth', '4', '--rate', '300', '--span', '48MiB',
                  '--block-size', '8KiB')]
    for number in range(3):
        time.sleep(1.5)
        for load in loads:
            load.require_running(f'before kill {number}')
        daemon.sandbay('snapshot', 'create', 'thin', f's{number}', '--with', 'thick')
        time.sleep(0.5)
        daemon.kill()
        daemon.start()
    for load in loads:
        load.require_good()
    require_same(t, daemon, data, 'thick', 'at the end')
    taken = daemon.sandbay_json('snapshot', 'list', 'thin')['snapshots']
    t.check(len(taken) == 3, f'three snapshots: {taken}')
    require_whole(t, daemon, 'after three kills')
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_a_pool_without_nvram_survives_a_kill(t):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon([{'name': 'v', 'size': '48MiB', 'thin': True}], extra=two_sets() + pool())
    load = Load(t, daemon.url('v'), '--queue-depth', '4', '--rate', '200', '--block-size', '16KiB')
    time.sleep(2)
    daemon.kill()
    daemon.start()
    load.require_good()
    require_whole(t, daemon, 'after a kill')


def test_a_pool_goes_on_without_its_lost_nvram(t):
    """Changes of its map that were in an NVRAM that is gone are given up, by an explicit word."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '32MiB', 'thin': True}],
                      extra=two_sets() + NVRAM + pool())
    qemu_io(t, daemon, 'v', 'write -P 1 0 8M', 'flush')
    t.check(daemon.terminate() == 0, 'an orderly end')
    daemon.start()
    qemu_io(t, daemon, 'v', 'write -P 2 16M 4M', 'flush')
    daemon.kill()
    os.remove(os.path.join(daemon.state, 'nvram.img'))
    daemon.start()
    reason = the_pool(daemon)['reason']
    t.check('in another NVRAM' in reason and
            'sandbay pool discard p --yes-lose-data' in reason, reason)
    t.check(the_volume(daemon, 'v')['reason'].endswith(reason), 'the volume says so, too')
    done = daemon.sandbay('pool', 'discard', 'p', ok=False)
    t.check('--yes-lose-data' in done.stdout and done.returncode != 0, done.stdout)
    done = daemon.sandbay('pool', 'discard', 'p', '--yes-lose-data')
    t.check('is open without them' in done.stdout and 'all is well' in done.stdout, done.stdout)
    t.check(any('they are given up' in event['text'] for event in events(daemon)), 'it is told')
    audited = daemon.sandbay('audit', 'list').stdout
    t.check('discard' in audited, audited)
    t.until(lambda: not the_volume(daemon, 'v')['reason'], 'the volume serves again')
    qemu_io(t, daemon, 'v', 'read -P 1 0 8M', 'read -P 0 16M 4M', 'write -P 3 8M 12M',
            'read -P 3 8M 12M')
    require_whole(t, daemon, 'after it was opened')
    done = daemon.sandbay('pool', 'discard', 'p', '--yes-lose-data', ok=False)
    t.check('there is nothing to give up' in done.stdout, done.stdout)
    daemon.kill()
    daemon.start()
    qemu_io(t, daemon, 'v', 'read -P 1 0 8M', 'read -P 3 8M 12M')
    require_whole(t, daemon, 'after a kill')


def test_thin_space_is_taken_and_given_back(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '64MiB', 'thin': True, 'thin_warning': 25}],
                      extra=two_sets() + pool())
    t.check(the_volume(daemon, 'v')['allocated'] == 0, 'nothing is taken at first')
    qemu_io(t, daemon, 'v', 'write -P 7 0 8M')
    t.check(the_volume(daemon, 'v')['allocated'] == 8 << 20, 'as much as was written')
    qemu_io(t, daemon, 'v', 'write -P 8 8M 16M', 'read -P 7 0 8M', 'read -P 0 32M 4M')
    t.until(lambda: 'space warning' in kinds(daemon), 'the threshold is told')
    qemu_io(t, daemon, 'v', 'discard 0 8M', 'read -P 0 0 8M', 'read -P 8 8M 16M')
    t.check(the_volume(daemon, 'v')['allocated'] == 16 << 20, 'unmapped pages are given back')
    daemon.sandbay('volume', 'limits', 'v', '--thin-limit', '50')
    done = qemu_io(t, daemon, 'v', 'write -P 9 32M 32M', ok=None)
    t.check('failed' in done.stdout or done.returncode != 0, f'the limit counts: {done.stdout}')
    done = daemon.sandbay('volume', 'create', 'large', '--size', '10GiB', ok=False)
    t.check('10.0 GiB asked, pool "p" has ' in done.stdout and
            'free; use --thin or add a member' in done.stdout, f'a plain refusal: {done.stdout}')


def test_snapshots_are_kept_shown_restored_and_cloned(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '32MiB'}], extra=two_sets() + pool())
    qemu_io(t, daemon, 'v', 'write -P 1 0 8M')
    daemon.sandbay('snapshot', 'create', 'v', 'one')
    qemu_io(t, daemon, 'v', 'write -P 2 0 4M')
    daemon.sandbay('snapshot', 'create', 'v', 'two')
    qemu_io(t, daemon, 'v', 'write -P 3 0 2M')
    again = daemon.sandbay('snapshot', 'create', 'v', 'two')
    t.check('snapshot two' in again.stdout, f'asked again, the same: {again.stdout}')
    daemon.sandbay('snapshot', 'online', 'v', 'one')
    daemon.sandbay('snapshot', 'online', 'v', 'two', '--writable')
    qemu_io(t, daemon, 'v-two', 'read -P 2 0 4M', 'read -P 1 4M 4M', 'write -P 9 1M 1M')
    daemon.sandbay('snapshot', 'clone', 'v', 'one', 'copy')
    daemon.sandbay('access', 'add', 'copy', '--initiator', '*')
    qemu_io(t, daemon, 'copy', 'read -P 1 0 8M', 'write -P 5 0 1M')
    daemon.kill()
    daemon.start()
    qemu_io(t, daemon, 'v', 'read -P 3 0 2M', 'read -P 2 2M 2M', 'read -P 1 4M 4M')
    t.run('qemu-io', '-r', '-f', 'raw', '-c', 'read -P 1 0 8M', daemon.url('v-one'))
    qemu_io(t, daemon, 'v-two', 'read -P 9 1M 1M', 'read -P 2 2M 2M')
    qemu_io(t, daemon, 'copy', 'read -P 5 0 1M', 'read -P 1 1M 7M')
    daemon.sandbay('snapshot', 'restore', 'v', 'one')
    qemu_io(t, daemon, 'v', 'read -P 1 0 8M', 'write -P 6 0 1M')
    daemon.sandbay('snapshot', 'restore', 'v', 'two')
    qemu_io(t, daemon, 'v', 'read -P 2 0 4M', 'read -P 1 4M 4M')
    done = daemon.sandbay('volume', 'create', 'v2', '--size', '4MiB')
    done = daemon.sandbay('volume', 'delete', 'copy')
    daemon.sandbay('snapshot', 'delete', 'v', 'one', '--force')
    qemu_io(t, daemon, 'v', 'read -P 2 0 4M', 'read -P 1 4M 4M')
    require_whole(t, daemon, 'at the end')
    t.check(daemon.terminate() == 0, 'an orderly end')
    daemon.start()
    qemu_io(t, daemon, 'v', 'read -P 2 0 4M', 'read -P 1 4M 4M')
    require_whole(t, daemon, 'after a restart')


def test_a_set_that_is_away_takes_its_volumes_alone(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': name, 'size': '8MiB', 'on': name} for name in ('a', 'b')],
                      extra=two_sets() + pool())
    for name in ('a', 'b'):
        qemu_io(t, daemon, name, 'write -P 4 0 8M', 'flush')
    t.check(daemon.terminate() == 0, 'an orderly end')
    away = [os.path.join(daemon.state, 'drives', f'd{i}.img') for i in (0, 1)]
    for path in away:
        os.rename(path, path + '.away')
        os.mkdir(path)  # Nothing that could be a drive.
    daemon.start()
    t.check(the_volume(daemon, 'a')['health'] == 'missing', 'the volume on it is missing')
    done = qemu_io(t, daemon, 'a', 'read -P 4 0 8M', ok=None)
    t.check(done.returncode != 0 or 'failed' in done.stdout, f'it is not ready: {done.stdout}')
    qemu_io(t, daemon, 'b', 'read -P 4 0 8M', 'write -P 5 0 4M', 'flush')
    for path in away:
        os.rmdir(path)
        os.rename(path + '.away', path)
    t.until(lambda: the_volume(daemon, 'a')['health'] == 'good', 'it comes back by itself')
    qemu_io(t, daemon, 'a', 'read -P 4 0 8M')


def test_a_volume_whose_pool_has_no_set_is_not_ready(t):
    """It is there, says whose it is, and keeps nobody from an orderly end: it took nothing."""
    identity = '[identity]\npages = "rdac"\narray = "60080e500017a8d0000000004d2f8b11"\n'
    daemon = t.daemon([{'name': 'v', 'size': '8MiB'}], extra=identity + pool())
    host = Host(t, daemon, 'v')
    t.check(host.command(inquiry(), 255).data[0] == 0, 'a disk')
    t.check(host.command(inquiry(255, 0xc9), 255).data[4:8] == b'vac1', 'and one of its array')
    replies = [host.command(TEST_UNIT_READY) for _ in range(4)]
    t.check((replies[-1].key, replies[-1].additional >> 8) == (2, 4), f'not ready: {replies}')
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_schedules_take_snapshots_and_keep_the_newest(t):
    daemon = t.daemon([{'name': 'v', 'size': '8MiB'}], extra=two_sets() + pool())
    daemon.sandbay('snapshot', 'schedule', 'v', 'often', '--every', '1s', '--keep', '2')

    def names():
        return [one['name'] for one in daemon.sandbay_json('snapshot', 'list', 'v')['snapshots']]
    first = t.until(names, 'the first is taken')[0]
    t.until(lambda: first not in names(), 'the first is deleted')
    t.check(1 <= len(names()) <= 3, f'two are kept: {names()}')
    daemon.sandbay('snapshot', 'unschedule', 'v', 'often')
    require_whole(t, daemon, 'at the end')


def test_commands_say_what_is_there_and_what_they_did(t):
    daemon = t.daemon([{'name': 'v', 'size': '8MiB', 'thin': True}], extra=two_sets() + pool())

    def said(*words, ok=True):
        return daemon.sandbay(*words, ok=ok).stdout
    t.check('already' not in said('snapshot', 'create', 'v', 's'), 'the first is new')
    again = said('snapshot', 'create', 'v', 's')
    t.check('snapshot s exists already, of 20' in again, again)
    said('snapshot', 'schedule', 'v', 'hourly', '--every', '1h', '--keep', '2')
    shown = said('snapshot', 'schedules', 'v')
    t.check(' 1h ' in shown, shown)
    shown = said('volume', 'limits', 'v')
    t.check('at most 100 % of its size' in shown, shown)
    made = ('volume', 'create', 'w', '--size', '8MiB', '--rate', '40MB/s', '--iops')
    said(*made, '100')
    volume = the_volume(daemon, 'w')
    t.check(volume['operations_limit'] == 100 and volume['bytes_limit'] == 40_000_000, str(volume))
    said(*made, '100')
    done = said(*made, '50', ok=False)
    t.check('exists already, with other limits' in done, done)
    done = said('volume', 'limits', 'w', '--iops', '0', '--rate', '0B/s')
    t.check('volume w: no limits' in done, done)
    done = said('volume', 'shrink', 'v', '--size', '16MiB', '--force', ok=False)
    t.check('see sandbay volume expand' in done, done)
    t.check(the_volume(daemon, 'v')['size'] == 8 << 20, 'it is as large as it was')
    done = said('pool', 'create', 'q')
    t.check('pool q: of no member yet' in done, done)


def names_of(daemon, volume='v'):
    return [one['name'] for one in daemon.sandbay_json('snapshot', 'list', volume)['snapshots']]


def told(daemon, kind):
    return [one['text'] for one in events(daemon) if one['kind'] == kind]


def require_same_reserve(t, daemon, used, limit, deleted, offline, volume='v'):
    """REST, metrics and the command line say the same of what snapshots may take, and take."""
    shown = the_volume(daemon, volume)
    keys = ('snapshot_bytes', 'reserve_bytes', 'reserve_deleted', 'reserve_taken_offline')
    found = tuple(shown[key] for key in keys)
    t.check(found == (used, limit, deleted, offline), f'{found}')
    with urllib.request.urlopen(f'http://{daemon.management}/metrics', timeout=20) as answer:
        metrics = answer.read().decode()
    names = ('snapshot_bytes', 'snapshot_reserve_bytes', 'reserve_deleted_total',
             'reserve_taken_offline_total')
    for name, value in zip(names, found):
        sample = f'sandbay_volume_{name}{{volume="{volume}"}} {value}\n'
        t.check(sample in metrics, f'{sample} is missing')
    printed = daemon.sandbay('volume', 'show', volume).stdout
    t.check(f'{used / (1 << 20):.2f} MiB of {limit / (1 << 20):.2f} MiB' in printed, printed)
    t.check((f'{deleted} of them deleted' in printed) == (deleted > 0), printed)
    t.check((f'{offline} of them taken offline' in printed) == (offline > 0), printed)


def test_a_full_reserve_costs_the_oldest_snapshot(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '32MiB', 'thin': True, 'snapshot_reserve': '25%'}],
                      extra=two_sets() + pool())
    qemu_io(t, daemon, 'v', 'write -P 1 0 32M')
    for number in (1, 2, 3):
        daemon.sandbay('snapshot', 'create', 'v', f's{number}')
        qemu_io(t, daemon, 'v', f'write -P {number + 1} 0 2M')
    shown = the_volume(daemon, 'v')
    t.check((shown['reserve_bytes'], shown['snapshot_bytes']) == (8 << 20, 6 << 20), f'{shown}')
    require_same_reserve(t, daemon, 6 << 20, 8 << 20, 0, 0)
    # A page that is unmapped stays as it is, for the snapshot that needs it.
    qemu_io(t, daemon, 'v', 'discard 16M 1M')
    require_same_reserve(t, daemon, 7 << 20, 8 << 20, 0, 0)
    listed = daemon.sandbay('snapshot', 'list', 'v').stdout
    t.check('They take 7.00 MiB of a reserve of 8.00 MiB; 1.00 MiB are left (delete-oldest)' in
            listed, listed)
    # The oldest is in use, so the next one goes; what it alone kept is given back.
    daemon.sandbay('snapshot', 'online', 'v', 's1')
    holder = t.start(t.program('sandbay'), 'load', '--read-percent', '100', '--rate', '10',
                     '--duration', '10min', daemon.url('v-s1'))
    t.until(lambda: daemon.sandbay_json('session', 'list')['sessions'], 'somebody uses it')
    qemu_io(t, daemon, 'v', 'write -P 9 4M 3M')
    t.until(lambda: names_of(daemon) == ['s1', 's3'], 'the oldest that is in no use is deleted')
    t.check(the_volume(daemon, 'v')['reserve_deleted'] == 1, 'it is counted')
    t.check(any('snapshot s2 is deleted' in text and '10.0 MiB' in text
                for text in told(daemon, 'snapshot reserve')), 'that is told')
    holder.terminate()
    holder.wait()
    daemon.sandbay('volume', 'limits', 'v', '--snapshot-reserve', '4MiB')
    t.until(lambda: names_of(daemon) == [], 'and the others when they do not fit')
    t.until(lambda: the_pool(daemon)['snapshot_reserve'] == 0, 'all is given back')
    daemon.sandbay('snapshot', 'create', 'v', 'new')
    qemu_io(t, daemon, 'v', 'write -P 7 0 1M', 'read -P 9 4M 3M')
    t.check(names_of(daemon) == ['new'], 'one that fits stays')
    require_whole(t, daemon, 'at the end')


def test_snapshots_go_offline_when_their_reserve_is_full(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '32MiB', 'snapshot_reserve': '2MiB',
                        'reserve_policy': 'offline'}], extra=two_sets() + pool())
    qemu_io(t, daemon, 'v', 'write -P 1 0 8M')
    daemon.sandbay('snapshot', 'create', 'v', 's')
    daemon.sandbay('snapshot', 'online', 'v', 's')
    qemu_io(t, daemon, 'v', 'write -P 2 0 4M')
    t.until(lambda: daemon.sandbay_json('snapshot', 'show', 'v', 's')['online'] is False,
            'it is taken offline')
    require_same_reserve(t, daemon, 4 << 20, 2 << 20, 0, 1)
    t.check(any('4.00 MiB, and have a reserve of 2.00 MiB' in text
                for text in told(daemon, 'snapshot reserve')), 'that is told')
    for words in (('create', 'v', 'more'), ('online', 'v', 's')):
        done = daemon.sandbay('snapshot', *words, ok=False)
        t.check('its snapshots take 4.00 MiB, and have a reserve of 2.00 MiB; delete some' in
                done.stdout, done.stdout)
    qemu_io(t, daemon, 'v', 'write -P 3 0 1M', 'read -P 2 1M 3M')
    daemon.kill()
    daemon.start()
    daemon.sandbay('snapshot', 'online', 'v', 's', ok=False)
    daemon.sandbay('volume', 'limits', 'v', '--snapshot-reserve', '5MiB')
    daemon.sandbay('snapshot', 'online', 'v', 's')
    t.run('qemu-io', '-r', '-f', 'raw', '-c', 'read -P 1 0 8M', daemon.url('v-s'))
    require_whole(t, daemon, 'at the end')


def test_limits_of_space_follow_the_size(t):
    """Also where a restore brings an older size back."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '16MiB', 'thin': True, 'thin_limit': 50}],
                      extra=two_sets() + pool())
    daemon.sandbay('snapshot', 'create', 'v', 's')
    daemon.sandbay('volume', 'expand', 'v', '--size', '32MiB')
    qemu_io(t, daemon, 'v', 'write -P 1 0 16M')
    daemon.sandbay('snapshot', 'restore', 'v', 's')
    qemu_io(t, daemon, 'v', 'write -P 1 0 8M')
    done = qemu_io(t, daemon, 'v', 'write -P 1 8M 1M', ok=None)
    t.check('failed' in done.stdout or done.returncode != 0, f'half of 16 MiB: {done.stdout}')


def test_offline_and_read_only_volumes_say_so(t):
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'x', 'size': '8MiB'}], extra=two_sets() + pool())
    daemon.sandbay('volume', 'create', 'v', '--size', '8MiB', '--initiator', '*')
    qemu_io(t, daemon, 'v', 'write -P 4 0 8M')
    daemon.sandbay('volume', 'offline', 'v')
    watcher = Host(t, daemon, 'v')
    watcher.command(TEST_UNIT_READY)  # Takes the unit attention of a new session.
    for cdb, length in ((TEST_UNIT_READY, 0), (read_10(0, 8), 8 * BLOCK)):
        reply = watcher.command(cdb, length)
        t.check((reply.key, reply.additional) == (2, 0x0403), f'not ready, for somebody: {reply!r}')
    t.check(watcher.good(inquiry(), 255)[0] == 0, 'INQUIRY is answered')
    t.check(luns_of(watcher.good(report_luns(), 4096)) == [0], 'and so is REPORT LUNS')
    sense = watcher.good(bytes([3, 0, 0, 0, 252, 0]), 252)
    t.check((sense[2] & 15, sense[12], sense[13]) == (2, 4, 3), f'REQUEST SENSE: {sense.hex()}')
    done = qemu_io(t, daemon, 'v', 'read -P 4 0 8M', ok=None)
    t.check(done.returncode != 0 or 'failed' in done.stdout, f'it is not ready: {done.stdout}')
    daemon.sandbay('volume', 'online', 'v')
    t.check(watcher.command(TEST_UNIT_READY).good, 'the session that was there sees it at once')
    watcher.close()
    daemon.sandbay('volume', 'read-only', 'v')
    t.run('qemu-io', '-r', '-f', 'raw', '-c', 'read -P 4 0 8M', daemon.url('v'))
    done = qemu_io(t, daemon, 'v', 'write -P 5 0 1M', ok=None)
    t.check(done.returncode != 0 or 'failed' in done.stdout, f'no writes: {done.stdout}')
    daemon.sandbay('volume', 'read-only', 'v', '--off')
    daemon.sandbay('volume', 'expand', 'v', '--size', '16MiB')
    qemu_io(t, daemon, 'v', 'write -P 5 8M 8M', 'read -P 4 0 8M')
    daemon.sandbay('volume', 'shrink', 'v', '--size', '8MiB', ok=False)
    daemon.sandbay('volume', 'shrink', 'v', '--size', '8MiB', '--force')
    qemu_io(t, daemon, 'v', 'read -P 4 0 8M')
    daemon.sandbay('volume', 'delete', 'v')
    require_whole(t, daemon, 'at the end')


def test_the_cache_counts_for_volumes_on_pools(t):
    """Hits and writes are told of the volume, as for one on a set."""
    daemon = t.daemon([{'name': 'v', 'size': '16MiB'}],
                      extra=two_sets() + NVRAM + CACHE + pool())
    daemon.sandbay('volume', 'create', 'gone', '--size', '4MiB', '--initiator', '*')
    qemu_io(t, daemon, 'v', 'write -P 7 0 4M', 'read -P 7 0 4M')
    daemon.sandbay('volume', 'delete', 'gone')
    volumes = daemon.sandbay_json('cache', 'show')['volumes']
    t.check([one['name'] for one in volumes] == ['v'], f'it alone: {volumes}')
    counters = volumes[0]['counters']
    t.check(counters['written_bytes'] >= 4 << 20 and counters['hits'] > 0, f'{counters}')
