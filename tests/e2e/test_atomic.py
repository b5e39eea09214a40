"""COMPARE AND WRITE as VMFS takes its locks by it: many initiators, one block."""
import os
import struct
import threading

import host
from raid_lab import drives, kinds, raid
from test_members import member, the_member
from test_pool import pool, require_whole

BLOCK, LBA = 512, 7
INITIATORS, WANTED = 8, int(os.environ.get('SANDBAY_E2E_COUNT', '4000'))
MISCOMPARE = 0xe


def compare_and_write(one, old, new):
    data = old + new
    cdb = struct.pack('>BBQIBB', 0x89, 0, LBA, 1, 0, 0)
    return one.command(cdb, data=data)


def block_of(value):
    return struct.pack('>QQ', 0x636f756e74, value).ljust(BLOCK, b'.')


class Counter(threading.Thread):
    """Counts the block up with its own session until all together have done it often enough."""

    successes = 0  # All of them together.

    def __init__(self, t, daemon, number):
        super().__init__(daemon=True)
        self.one = host.Host(t, daemon, 'v', name=f'{host.ME}-{number}')
        self.one.attentions()
        self.done = self.lost = 0
        self.wrong = None

    def run(self):
        try:
            old = self.one.read(LBA, 1).data
            while Counter.successes < WANTED:
                value = struct.unpack_from('>Q', old, 8)[0]
                reply = compare_and_write(self.one, old, block_of(value + 1))
                if reply.good:
                    self.done += 1
                    Counter.successes += 1
                    old = block_of(value + 1)
                    continue
                if reply.key != MISCOMPARE:
                    if reply.key != 6:
                        self.wrong = repr(reply)
                        return
                else:
                    self.lost += 1
                old = self.one.good(host.read_10(LBA, 1), BLOCK)
        except Exception as error:  # It ends the test.
            self.wrong = repr(error)


def test_eight_initiators_count_one_block_up(t):
    """While snapshots are taken, the page moves and a drive rebuilds."""
    first = drives(['d0', 'd1'], '96MiB', spares=['s']) + raid('a', 'raid1', ['d0', 'd1'],
                                                                journal='1MiB')
    daemon = t.daemon([{'name': 'v', 'size': '48MiB'}], reactors=2,
                      extra=first + member('two') + pool())
    start = host.Host(t, daemon, 'v')
    start.attentions()
    start.write(LBA, block_of(0))
    Counter.successes = 0
    counters = [Counter(t, daemon, number) for number in range(INITIATORS)]
    for each in counters:
        each.start()
    done = []

    def after(share, what, *words):
        t.until(lambda: Counter.successes > WANTED * share or any(c.wrong for c in counters),
                f'{share:.0%} are counted', 120)
        daemon.sandbay(*words)
        done.append(f'{what} at {Counter.successes}')

    after(0.1, 'snapshot', 'snapshot', 'create', 'v', 'one')
    after(0.2, 'member', 'member', 'add', 'two', '--pool', 'p')
    after(0.3, 'drive', 'drive', 'fail', 'd1')
    after(0.4, 'snapshot', 'snapshot', 'create', 'v', 'two')
    after(0.5, 'moves', 'member', 'remove', 'array1')
    after(0.7, 'snapshot', 'snapshot', 'create', 'v', 'three')
    for each in counters:
        each.join(120)
    t.check(not any(each.is_alive() for each in counters), 'all have ended')
    for each in counters:
        t.check(each.wrong is None, each.wrong)
    value = struct.unpack_from('>Q', start.good(host.read_10(LBA, 1), BLOCK), 8)[0]
    sums = sum(each.done for each in counters), sum(each.lost for each in counters)
    t.say(f'{sums[0]} times counted, {sums[1]} times another was first; ' + '; '.join(done))
    t.check(value == sums[0] >= WANTED, f'{value} for {sums[0]} successes')
    t.check(sums[1] > 0, 'nobody met another')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the drive is rebuilt', 60)
    t.until(lambda: the_member(daemon, 'array1')['state'] == 'present', 'the pages have moved', 60)
    require_whole(t, daemon, 'at the end')
