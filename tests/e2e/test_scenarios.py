"""Composite scenarios: many things at once, in one daemon, under a verifying load."""
import time

from raid_lab import (Load, drives, faults, image, kinds, raid, require_same, the_set, whole,
                      write)
from test_pool import pool, qemu_io, require_whole, the_pool, the_volume

# What two failures may concern at a time: one drive is being rebuilt, one has defects, and its
# answers are wrong at times. The others are only slow, and repeat themselves.
RULES = ('id=defects at=drive:d0 op=read p=0.02 count=12 do=lse',
         'id=flips at=drive:d0 op=read p=0.02 count=12 do=flip where=read bits=3',
         'id=lost at=drive:d0 op=write p=0.02 count=12 do=lost',
         'id=slow at=drive p=0.02 do=slow latency=2ms..20ms',
         'id=again at=drive:d2 op=read p=0.05 do=recovered')


def test_scrub_rebuild_snapshot_deletion_and_reclaim_under_random_faults(t):
    """Nothing is lost, no host sees an error, and all space is given back in the end."""
    t.need('openssl', 'qemu-img', 'qemu-io')
    names = [f'd{i}' for i in range(6)]
    daemon = t.daemon(
        [{'name': 'v', 'size': '48MiB'}, {'name': 'w', 'size': '64MiB', 'thin': True}],
        extra=(faults(seed=int(time.time())) +
               drives(names, '64MiB', spares=('s0',)) +
               raid('a', 'raid6', names, journal='2MiB', integrity=True) + pool()))
    data = image(t, 'data', 16, 7)
    write(t, daemon, data, 'w')
    for rule in RULES:
        daemon.sandbay('fault', 'add', rule)
    load = Load(t, daemon.url('v'), '--queue-depth', '4', '--rate', '200', '--block-size', '16KiB')
    for number in range(6):
        daemon.sandbay('snapshot', 'create', 'v', f's{number}', '--with', 'w')
        qemu_io(t, daemon, 'w', f'write -P {number + 1} 16M 16M')
        time.sleep(0.3)
    daemon.sandbay('drive', 'fail', 'd4')
    t.until(lambda: 'rebuild started' in kinds(daemon), 'the spare is rebuilt')
    daemon.sandbay('raid', 'verify', 'a')
    for number in (3, 0, 5, 1, 4, 2):
        for volume in 'vw':
            daemon.sandbay('snapshot', 'delete', volume, f's{number}')
        qemu_io(t, daemon, 'w', 'discard 16M 16M', 'read -P 0 16M 16M', 'write -P 9 24M 8M',
                'discard 24M 8M')
        load.require_running(f'while s{number} goes')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the rebuild ends', 120)
    t.until(lambda: whole(daemon, 'a'), 'the set is whole', 60)
    load.require_good()
    fired = {one['id']: one['fired'] for one in daemon.sandbay_json('fault', 'list')['faults']}
    t.check(all(fired.values()), f'every fault has struck: {fired}')
    daemon.sandbay('fault', 'clear')
    daemon.sandbay('raid', 'verify', 'a', '--wait')
    mismatches = the_set(daemon, 'a')['counters']['mismatches']
    daemon.sandbay('raid', 'verify', 'a', '--wait')
    shown = the_set(daemon, 'a')
    t.check(shown['counters']['mismatches'] == mismatches, f'parity fits data: {shown}')
    t.check(not shown['lost'], f'nothing is lost: {shown["lost"]}')
    require_same(t, daemon, data, 'w', 'at the end')
    qemu_io(t, daemon, 'w', 'read -P 0 16M 48M')
    t.until(lambda: the_pool(daemon)['snapshot_reserve'] == 0, 'what snapshots kept is free', 60)
    t.check(the_volume(daemon, 'w')['allocated'] == 16 << 20, 'and what was unmapped')
    require_whole(t, daemon, 'at the end')


test_scrub_rebuild_snapshot_deletion_and_reclaim_under_random_faults.minutes = 1
