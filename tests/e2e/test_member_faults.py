"""Members that break: rules of the fault engine on them, all drives of one pulled, one that comes
back stale in the middle of a rebalance, maps that are damaged, kills at each step of a move.
"""
import json
import os
import re
import shutil
import time

import host
from host import Host
from raid_lab import Load, events, faults, image, kinds, require_same, the_set, whole, write
from test_members import bytes_on, first, member, the_member
from test_pool import pool, qemu_io, require_whole, the_volume

BOTH = pool().replace('page', 'members = ["array1", "two"]\npage')
HERE_AND_THERE = [{'name': 'here', 'size': '8MiB', 'on': 'a'},
                  {'name': 'there', 'size': '16MiB', 'on': 'two-set'}]


def two_members(t, volumes=None, *rules):
    return t.daemon(volumes or HERE_AND_THERE,
                    extra=faults(*rules) + first() + member('two') + BOTH)


def load(t, daemon, name, *words):
    return Load(t, daemon.url(name), '--queue-depth', '4', '--rate', '300', '--block-size', '16KiB',
                *words)


def counters(daemon, rule):
    rules = daemon.sandbay_json('fault', 'list')['faults']
    return next(one for one in rules if one['id'] == rule)


def require_right(t, running):
    """Ends a load that may have been refused requests: what was read was right all the same."""
    report = running.end()
    t.check(report['miscompares'] == 0, f'no wrong data: {report["first_miscompare"]}')
    t.check(report['blocks_verified'] > 0, 'something was verified')
    return report


def require_not_ready(t, watching):
    for cdb, length in ((host.TEST_UNIT_READY, 0), (host.read_10(0, 1), 4096)):
        reply = watching.command(cdb, length)
        t.check((reply.status, reply.key, reply.additional >> 8) == (host.CHECK_CONDITION, 2, 4),
                f'not ready: {reply!r}')


def after_attentions(watching):
    """A new nexus that has heard all that it has to."""
    while watching.command(host.TEST_UNIT_READY).key == 6:
        pass
    return watching


def watched(t, seed):
    """Data on the second member, a host that looks at them, and loads on both members."""
    daemon = two_members(t)
    data = image(t, 'data', 8, seed)
    write(t, daemon, data, 'there')
    watching = Host(t, daemon, 'there')
    watching.attentions()
    others = load(t, daemon, 'here')
    hit = load(t, daemon, 'there', '--offset', '8MiB')
    time.sleep(1)
    return daemon, data, watching, others, hit


def test_a_member_is_lost_and_returns_by_rule(t):
    t.need('openssl', 'qemu-img')
    daemon, data, watching, others, hit = watched(t, 1)
    daemon.sandbay('fault', 'add', 'id=gone at=member:two do=member.loss for=3s')
    t.until(lambda: the_member(daemon, 'two')['health'] == 'missing', 'the member is away')
    t.check('fault rule' in the_member(daemon, 'two')['reason'], 'it says why')
    require_not_ready(t, watching)
    t.check(the_volume(daemon, 'here')['health'] == 'good', 'the other volume stays')
    t.until(lambda: the_volume(daemon, 'there')['health'] == 'good', 'it comes back by itself')
    time.sleep(1)
    hit.require_running('when the member is back')
    report = require_right(t, hit)
    t.check(report['errors'] > 0, 'it was refused requests')
    others.require_good()
    require_same(t, daemon, data, 'there', 'at the end')
    require_whole(t, daemon, 'at the end')
    t.check(counters(daemon, 'gone')['fired'] == 1, 'it is counted')
    t.check(any('fault gone fired: member.loss' in event['text'] for event in events(daemon)),
            'it is told')
    done = daemon.sandbay('fault', 'add', 'at=member:three do=member.loss', ok=False)
    t.check('unknown member; members are: array1, two' in done.stdout, done.stdout)


def test_a_member_is_cut_off_and_slow_by_rule(t):
    daemon = two_members(t)
    hit = load(t, daemon, 'there')
    time.sleep(0.5)
    # Shorter than the patience: hosts wait.
    daemon.sandbay('fault', 'add', 'id=short at=member:two do=member.partition for=1s patience=9s')
    daemon.sandbay('fault', 'add',
                   'id=slow event=rule:short at=member:two do=member.slow latency=30ms for=2s')
    time.sleep(2.5)
    daemon.sandbay('fault', 'clear')
    time.sleep(0.5)
    hit.require_good()
    hit = load(t, daemon, 'there')
    time.sleep(0.5)
    daemon.sandbay('fault', 'add', 'at=member:two do=member.partition for=4s patience=1s')
    t.until(lambda: the_member(daemon, 'two')['health'] == 'missing', 'patience is over')
    t.until(lambda: the_volume(daemon, 'there')['health'] == 'good', 'it comes back by itself')
    time.sleep(1)
    require_right(t, hit)
    require_whole(t, daemon, 'at the end')


def test_an_operation_that_hangs_does_not_keep_the_daemon(t):
    """What was written before is there afterwards, and the operation is done or undone."""
    t.need('openssl', 'qemu-img', 'qemu-io')
    daemon = two_members(t)
    data = image(t, 'data', 8, 6)
    write(t, daemon, data, 'there')
    daemon.sandbay('fault', 'add', 'at=member:two do=member.partition patience=1h')
    asking = t.start(t.program('sandbay'), '--management', f'http://{daemon.management}',
                     'snapshot', 'create', 'there', 's', log='asking.log')
    time.sleep(1)
    t.check(asking.poll() is None, 'it waits for the member')
    qemu_io(t, daemon, 'here', 'write -P 9 0 2M')
    t.check(daemon.terminate(90) == 1, 'it ends, and says that a volume was not flushed')
    t.check(asking.wait(10) != 0, 'who asked is told')
    with open(t.path('asking.log'), encoding='utf-8') as stream:
        text = stream.read()
    t.check('does not wait for this any longer' in text, text)
    with open(daemon.log, encoding='utf-8') as stream:
        lines = [line for line in stream if 'not waited for any longer' in line]
    t.check(len(lines) == 1 and 'create snapshots' in lines[0], f'one line says so: {lines}')
    daemon.start()
    require_same(t, daemon, data, 'there', 'after the next start')
    qemu_io(t, daemon, 'here', 'read -P 9 0 2M')
    require_whole(t, daemon, 'after the next start')
    daemon.sandbay('volume', 'delete', 'there', '--force', ok=None)
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_all_drives_of_a_member_are_pulled_and_inserted(t):
    t.need('openssl', 'qemu-img')
    daemon, data, watching, others, hit = watched(t, 2)
    for number in (0, 1):
        daemon.sandbay('fault', 'add', f'id=p{number} at=drive:two-d{number} do=pull')
        time.sleep(0.3)
    t.until(lambda: the_volume(daemon, 'there')['health'] == 'missing', 'its volume is away')
    require_not_ready(t, watching)
    t.check(the_volume(daemon, 'here')['health'] == 'good', 'the other volume stays')
    time.sleep(1)
    for number in (0, 1):
        daemon.sandbay('fault', 'clear', f'p{number}')
        time.sleep(0.3)
    t.until(lambda: the_volume(daemon, 'there')['health'] == 'good', 'it comes back by itself')
    t.until(lambda: whole(daemon, 'two-set'), 'the set is whole again', 60)
    time.sleep(1)
    hit.require_running('when the drives are back')
    require_right(t, hit)
    others.require_good()
    require_same(t, daemon, data, 'there', 'at the end')
    require_whole(t, daemon, 'at the end')
    t.check(the_set(daemon, 'two-set')['counters']['lost_blocks'] == 0, 'nothing is lost')


def wait_for_kill(t, daemon, step):
    t.until(lambda: not daemon.alive(), f'the daemon is killed: {step}', 60)
    t.check(daemon.process.wait() == -9, f'{step}: by SIGKILL')
    daemon.start()


def test_kills_at_each_step_of_a_rebalance(t):
    """Whatever step the daemon dies at, each page is owned once and holds what was written."""
    t.need('openssl', 'qemu-img')
    # So slow that it is not over while what has been moved is looked at.
    slow = 'at=member:two op=write do=member.slow latency=60ms'
    daemon = t.daemon([{'name': 'v', 'size': '40MiB'}],
                      extra=faults(slow) + first() + member('two') + pool())
    data = image(t, 'data', 40, 3)
    write(t, daemon, data, 'v')
    daemon.sandbay('snapshot', 'create', 'v', 's')
    changed = image(t, 'changed', 8, 4)
    write(t, daemon, changed, 'v')
    daemon.sandbay('member', 'add', 'two', '--pool', 'p')
    for step in ('claimed', 'copied', 'ready', 'moved'):
        daemon.sandbay('fault', 'add', f'at=meta event=rebalance.{step} after=1 do=rebalance.kill')
        wait_for_kill(t, daemon, step)
        require_whole(t, daemon, step)
        require_same(t, daemon, changed, 'v', step)
    daemon.sandbay('fault', 'clear')
    daemon.sandbay('fault', 'add', 'at=meta event=rebalance.kept after=3 do=rebalance.kill')
    daemon.sandbay('member', 'remove', 'array1')
    wait_for_kill(t, daemon, 'kept')
    daemon.sandbay('fault', 'clear')
    t.until(lambda: the_member(daemon, 'array1')['state'] == 'present', 'it leaves', 90)
    require_whole(t, daemon, 'at the end')
    require_same(t, daemon, changed, 'v', 'at the end')
    daemon.sandbay('snapshot', 'restore', 'v', 's')
    require_same(t, daemon, data, 'v', 'the snapshot')


def test_a_member_lost_and_returned_stale_in_a_rebalance(t):
    """Its drives come back as they were before the daemon's last start: they are refused, what is
    on them is away and nothing else; when they come as they were, nothing is lost."""
    t.need('openssl', 'qemu-img')
    daemon = t.daemon([{'name': 'v', 'size': '40MiB'}],
                      extra=faults() + first() + member('two') + pool())
    data = image(t, 'data', 40, 5)
    write(t, daemon, data, 'v')
    daemon.sandbay('volume', 'create', 'here', '--size', '4MiB', '--on', 'a', '--initiator', '*')
    qemu_io(t, daemon, 'here', 'write -P 4 0 4M', 'flush')
    daemon.sandbay('member', 'add', 'two', '--pool', 'p')
    kill = 'at=meta event=rebalance.moved after=4 do=rebalance.kill'
    daemon.sandbay('fault', 'add', kill)
    t.until(lambda: not daemon.alive(), 'killed in the middle', 60)
    folder = os.path.join(daemon.state, 'members', 'two', 'drives')
    shutil.copytree(folder, t.path('old'))
    daemon.start()
    daemon.sandbay('fault', 'add', kill)
    t.until(lambda: not daemon.alive(), 'killed once more', 60)
    os.rename(folder, t.path('new'))
    shutil.copytree(t.path('old'), folder)
    daemon.start()
    t.check(the_member(daemon, 'two')['health'] == 'missing', 'what is older does not serve')
    t.check(the_volume(daemon, 'v')['health'] == 'missing', 'its volume is away')
    qemu_io(t, daemon, 'here', 'read -P 4 0 4M', 'write -P 5 0 4M', 'flush')
    daemon.kill()
    shutil.rmtree(folder)
    os.rename(t.path('new'), folder)
    daemon.start()
    t.until(lambda: the_volume(daemon, 'v')['health'] == 'good', 'it comes back by itself')
    require_same(t, daemon, data, 'v', 'when the member is back')
    t.until(lambda: bytes_on(daemon, 'two') >= 16 << 20, 'the rebalance goes on', 60)
    require_same(t, daemon, data, 'v', 'at the end')
    qemu_io(t, daemon, 'here', 'read -P 5 0 4M')
    require_whole(t, daemon, 'at the end')


def with_rules(daemon, *rules):
    """What the next start reads."""
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(re.sub(r'rules = \[.*\]', f'rules = {json.dumps(list(rules))}', text))


def test_a_member_returns_stale_by_rule_in_a_rebalance(t):
    """As with drives that somebody has put back, while the daemon runs: what they had before its
    start is away, and nothing else; when they are as they should be, nothing is lost."""
    t.need('openssl', 'qemu-img', 'qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '40MiB'}],
                      extra=faults() + first() + member('two') + pool())
    data = image(t, 'data', 40, 8)
    write(t, daemon, data, 'v')
    daemon.sandbay('volume', 'create', 'here', '--size', '4MiB', '--on', 'a', '--initiator', '*')
    qemu_io(t, daemon, 'here', 'write -P 4 0 4M', 'flush')
    daemon.sandbay('member', 'add', 'two', '--pool', 'p')
    daemon.sandbay('fault', 'add', 'at=meta event=rebalance.moved after=4 do=rebalance.kill')
    t.until(lambda: not daemon.alive(), 'killed in the middle', 60)
    with_rules(daemon, 'id=stale at=member:two event=rebalance.moved after=4 '
               'do=member.return.stale for=1s')
    daemon.start()
    t.until(lambda: counters(daemon, 'stale')['fired'] == 1, 'it is lost in the middle', 60)
    t.until(lambda: the_volume(daemon, 'v')['health'] == 'missing', 'its volume is away')
    t.until(lambda: not counters(daemon, 'stale')['active'], 'its drives return')
    time.sleep(3)
    t.check(the_member(daemon, 'two')['health'] == 'missing', 'what is older does not serve')
    t.check(the_volume(daemon, 'v')['health'] == 'missing', 'its volume stays away')
    require_not_ready(t, after_attentions(Host(t, daemon, 'v')))
    qemu_io(t, daemon, 'here', 'read -P 4 0 4M', 'write -P 5 0 4M', 'flush')
    daemon.kill()
    with_rules(daemon)
    daemon.start()
    t.until(lambda: the_volume(daemon, 'v')['health'] == 'good', 'it comes back by itself')
    require_same(t, daemon, data, 'v', 'when the member is back')
    t.until(lambda: bytes_on(daemon, 'two') >= 16 << 20, 'the rebalance goes on', 60)
    require_same(t, daemon, data, 'v', 'at the end')
    qemu_io(t, daemon, 'here', 'read -P 5 0 4M')
    require_whole(t, daemon, 'at the end')


def test_a_damaged_map_is_refused(t):
    """The volumes of a pool that cannot be opened are not ready, and come back when it can; a
    value that is read later fails what needs it, once, and is told."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'v', 'size': '8MiB'}, {'name': 'w', 'size': '8MiB'}],
                      extra=faults() + first() + pool())
    for name in 'vw':
        qemu_io(t, daemon, name, 'write -P 6 0 128k', 'flush')
    t.check(daemon.terminate() == 0, 'an orderly end')
    with_rules(daemon, 'at=meta op=read count=1 do=map.corrupt')
    daemon.start()
    t.check('pool failed' in kinds(daemon), 'the pool is not opened')
    reason = daemon.sandbay_json('pool', 'show', 'p')['reason']
    t.check('checksum is wrong' in reason, reason)
    t.check('is not open' in the_volume(daemon, 'v')['reason'], 'it says why it is not served')
    watching = Host(t, daemon, 'v')
    t.check(watching.command(host.inquiry(), 255).data[0] == 0, 'it is there, and a disk')
    require_not_ready(t, after_attentions(watching))
    t.until(lambda: the_volume(daemon, 'v')['health'] == 'good', 'it comes back by itself')
    t.check(watching.command(host.TEST_UNIT_READY).good, 'also for who waited')
    for name in 'vw':
        qemu_io(t, daemon, name, 'read -P 6 0 128k', 'read -P 0 128k 1M')
    require_whole(t, daemon, 'when it is back')
    t.check(daemon.terminate() == 0, 'an orderly end')
    with_rules(daemon)
    daemon.start()
    daemon.sandbay('fault', 'add', 'id=map at=meta op=read count=1 do=map.corrupt')
    done = qemu_io(t, daemon, 'v', 'read -P 6 0 64k', ok=None)
    t.check('error' in done.stdout.lower() and 'Pattern verification failed' not in done.stdout,
            f'an honest error: {done.stdout}')
    t.check(any('its map is damaged at' in event['text'] for event in events(daemon)), 'told')
    t.check(counters(daemon, 'map')['fired'] == 1, 'counted')
    for name in 'vw':
        qemu_io(t, daemon, name, 'read -P 6 0 128k', 'read -P 0 128k 1M')
    require_whole(t, daemon, 'at the end')


test_an_operation_that_hangs_does_not_keep_the_daemon.minutes = 1
