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


ATOMIC_BLOCKS, ATOMIC_KILLS = 256, 10


def write_atomic(lba):
    return struct.pack('>BBQHHBB', 0x9c, 0, lba, 0, ATOMIC_BLOCKS, 0, 0)


class AtomicWriter(threading.Thread):
    """Writes its own blocks, each time with other bytes, until the daemon ends."""

    def __init__(self, t, daemon, number):
        super().__init__(daemon=True)
        self.one = host.Host(t, daemon, 'v', name=f'{host.ME}-{number}')
        self.one.attentions()
        self.number, self.done = number, 0

    def run(self):
        try:
            while self.one.command(write_atomic(self.number * ATOMIC_BLOCKS + 3),
                                   data=self.bytes_of(self.done + 1)).good:
                self.done += 1
        except Exception:
            pass  # The daemon has ended.

    def bytes_of(self, done):
        return struct.pack('>HH', self.number, done & 0xffff) * (ATOMIC_BLOCKS * BLOCK // 4)


def test_atomic_writes_are_whole_after_kill_9(t):
    """On four drives, whose parts of one write end apart."""
    names = ['d0', 'd1', 'd2', 'd3']
    daemon = t.daemon([{'name': 'v', 'raid': 'a', 'size': '16MiB'}], reactors=2,
                      extra=drives(names, '32MiB') +
                      raid('a', 'raid5', names, strip='8KiB', journal='1MiB'))
    written = 0
    for _ in range(ATOMIC_KILLS):
        writers = [AtomicWriter(t, daemon, number) for number in range(6)]
        for each in writers:
            each.start()
        t.until(lambda: sum(each.done for each in writers) > 20, 'they write', 60)
        daemon.kill()
        for each in writers:
            each.join(30)
        daemon.start()
        reader = host.Host(t, daemon, 'v')
        t.until(lambda: reader.command(host.TEST_UNIT_READY).good, 'what had begun is undone')
        for each in writers:
            data = reader.good(host.read_10(each.number * ATOMIC_BLOCKS + 3, ATOMIC_BLOCKS),
                               ATOMIC_BLOCKS * BLOCK)
            t.check(data == data[:4] * (len(data) // 4), f'{each.number}: parts of two writes')
            last = [each.bytes_of(each.done), each.bytes_of(each.done + 1)]
            t.check(data in last or each.done == 0,
                    f'{each.number} wrote {each.done} times and reads {data[:4].hex()}')
            written += each.done
        reader.close()
    t.check(written > 20 * ATOMIC_KILLS, f'{written} were acknowledged')
