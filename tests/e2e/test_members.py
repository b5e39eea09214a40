"""Members over iSCSI: arrays that come to a pool and leave it under a verifying load, through kills
of the daemon, and one that is lost and comes back.
"""
import os
import time

from harness import TOP
from raid_lab import Load, drives, kinds, raid
from test_pool import pool, qemu_io, require_whole, the_pool, the_volume


def member(name, size='96MiB'):
    """A member with a mirror of two drives; its files stand under STATE/members/NAME."""
    names = [f'{name}-d0', f'{name}-d1']
    text = drives(names, size) + raid(f'{name}-set', 'raid1', names, journal='1MiB')
    text = text.replace('[[drive]]', '[[member.drive]]').replace('[[raid]]', '[[member.raid]]')
    return f'[[member]]\nname = "{name}"\n{text}'


def first(size='96MiB'):
    return drives(['d0', 'd1'], size) + raid('a', 'raid1', ['d0', 'd1'], journal='1MiB')


def the_member(daemon, name):
    return daemon.sandbay_json('member', 'show', name)


def bytes_on(daemon, name):
    shown = the_member(daemon, name)
    return shown['size'] - shown['free']


def test_the_small_san(t):
    """The steps of docs/tour.md with conf/group.toml."""
    t.need('qemu-io')
    daemon = t.daemon(config=os.path.join(TOP, 'conf', 'group.toml'))
    daemon.sandbay('pool', 'create', 'default')
    daemon.sandbay('volume', 'create', 'db1', '--size', '1GiB', '--thin', '--initiator', '*')
    qemu_io(t, daemon, 'db1', 'write -P 7 0 90M')
    daemon.sandbay('snapshot', 'create', 'db1', 'monday')
    daemon.sandbay('member', 'add', 'array2')
    daemon.sandbay('member', 'add', 'array3')
    t.until(lambda: all(bytes_on(daemon, name) > 0 for name in ('array2', 'array3')),
            'the volume spreads to the members that came', 60)
    daemon.sandbay('snapshot', 'clone', 'db1', 'monday', 'db1-test')
    refused = qemu_io(t, daemon, 'db1-test', 'read 0 4k', ok=False)
    t.check('Authorization failure' in refused.stdout,
            f'a clone admits nobody yet: {refused.stdout}')
    daemon.sandbay('access', 'add', 'db1-test', '--initiator', '*')
    qemu_io(t, daemon, 'db1-test', 'read -P 7 0 90M')
    qemu_io(t, daemon, 'db1', 'read -P 7 0 90M')
    require_whole(t, daemon, 'with three members')
    daemon.sandbay('member', 'remove', 'array1', '--wait')
    t.check(the_member(daemon, 'array1')['state'] == 'present', 'the first member is in no pool')
    qemu_io(t, daemon, 'db1', 'read -P 7 0 90M')
    require_whole(t, daemon, 'with the two that came')
    refused = daemon.sandbay('volume', 'create', 'big', '--size', '120GiB', ok=False)
    t.check('use --thin or add a member' in refused.stdout, refused.stdout)


def test_members_come_and_go_under_load(t):
    daemon = t.daemon([{'name': 'v', 'size': '64MiB'}], extra=first() + member('two') + pool())
    before = the_pool(daemon)
    t.check(the_member(daemon, 'two')['state'] == 'present', 'it is there, and in no pool')
    load = Load(t, daemon.url('v'), '--queue-depth', '4', '--rate', '300', '--block-size', '16KiB')
    time.sleep(1)
    daemon.sandbay('volume', 'create', 'w', '--size', '80MiB', ok=False)
    daemon.sandbay('member', 'add', 'two', '--pool', 'p')
    after = the_pool(daemon)
    t.check(after['size'] > 1.9 * before['size'], f'twice the room at once: {after}')
    daemon.sandbay('volume', 'create', 'w', '--size', '80MiB')
    daemon.sandbay('volume', 'delete', 'w')
    t.until(lambda: the_pool(daemon)['size'] - the_pool(daemon)['free'] <= 64 << 20,
            'what was deleted is free again', 60)
    t.until(lambda: bytes_on(daemon, 'two') > 20 << 20, 'the volume spreads over both', 60)
    load.require_running('while it spreads')
    daemon.sandbay('member', 'remove', 'array1')
    time.sleep(0.2)
    daemon.kill()
    daemon.start()
    t.until(lambda: the_member(daemon, 'array1')['state'] == 'present', 'it leaves', 90)
    load.require_good()
    t.check(the_pool(daemon)['members'] == ['two'], 'the pool has the other alone')
    t.check('member' in kinds(daemon), 'that is told')
    require_whole(t, daemon, 'when one has left')
    t.check(daemon.terminate() == 0, 'an orderly end')
    daemon.start()
    t.check(the_pool(daemon)['members'] == ['two'], 'also after a restart')
    require_whole(t, daemon, 'after a restart')


def test_a_member_is_not_removed_without_room(t):
    daemon = t.daemon([{'name': 'x', 'size': '4MiB'}],
                      extra=first() + member('two') +
                      pool().replace('page', 'members = ["array1", "two"]\npage'))
    daemon.sandbay('volume', 'create', 'v', '--size', '128MiB')
    done = daemon.sandbay('member', 'remove', 'two', ok=False)
    t.check('would have to move, the rest of pool "p" has' in done.stdout,
            f'a plain refusal: {done.stdout}')
    daemon.sandbay('volume', 'delete', 'v')
    t.until(lambda: bytes_on(daemon, 'two') <= 4 << 20, 'all else is free')
    daemon.sandbay('member', 'remove', 'two')
    t.until(lambda: the_member(daemon, 'two')['state'] == 'present', 'it leaves')
    require_whole(t, daemon, 'when it has left')


def test_a_lost_member_takes_its_volumes_alone(t):
    t.need('qemu-io')
    extra = first() + member('two') + pool().replace('page', 'members = ["array1", "two"]\npage')
    daemon = t.daemon([{'name': 'here', 'size': '8MiB', 'on': 'a'},
                       {'name': 'there', 'size': '8MiB', 'on': 'two-set'}], extra=extra)
    for name in ('here', 'there'):
        qemu_io(t, daemon, name, 'write -P 4 0 8M', 'flush')
    t.check(daemon.terminate() == 0, 'an orderly end')
    folder = os.path.join(daemon.state, 'members', 'two', 'drives')
    os.rename(folder, folder + '.away')
    os.mkdir(folder)
    for number in (0, 1):
        os.mkdir(os.path.join(folder, f'two-d{number}.img'))  # Nothing that could be a drive.
    daemon.start()
    t.check(the_member(daemon, 'two')['health'] == 'missing', 'the member is away')
    t.check(the_volume(daemon, 'there')['health'] == 'missing', 'and so is what is on it')
    done = qemu_io(t, daemon, 'there', 'read -P 4 0 8M', ok=None)
    t.check(done.returncode != 0 or 'failed' in done.stdout, f'it is not ready: {done.stdout}')
    qemu_io(t, daemon, 'here', 'read -P 4 0 8M', 'write -P 5 0 4M', 'flush')
    for number in (0, 1):
        os.rmdir(os.path.join(folder, f'two-d{number}.img'))
    os.rmdir(folder)
    os.rename(folder + '.away', folder)
    t.until(lambda: the_volume(daemon, 'there')['health'] == 'good', 'it comes back by itself')
    qemu_io(t, daemon, 'there', 'read -P 4 0 8M')
    t.check(the_member(daemon, 'two')['health'] == 'good', 'the member is good again')
