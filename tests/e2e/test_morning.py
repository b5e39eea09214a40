"""The administrator's morning: what VeriTest's testers did with a new array in the test of the
EqualLogic PS3800XV that EqualLogic commissioned, table 3 (tasks, times and steps): here with
commands, and initiators that are attached and verify from the first volume to the end.

The document's seconds and unique steps stand beside ours; where its table is damaged, they are what
makes its printed total of 43.0 minutes.
"""
import time

from raid_lab import Load, drives, raid
from test_members import bytes_on, the_member
from test_pool import qemu_io, require_whole, the_pool

# Task, seconds and unique steps as printed.
DOCUMENT = {
    'initialise the first array': (180, 11),
    'configure the group': (300, 8),
    'make two pools': (240, 5),
    'create 20 volumes': (780, 6),
    'delete six volumes': (22, 3),
    'take a snapshot': (30, 4),
    'add the second member': (150, 11),
    'add the third member': (150, 11),
    'add space to a volume': (30 + 120, 4 + 5),  # The array's side, and the host's.
    'take thirty snapshots': (90, 3),
    'restore each of the thirty': (30 * 15, 7),  # 10 to 15 s each.
}
SNAPSHOTS = 30
KIB = 1 << 10
MIB = 1 << 20


def hardware(name, size='128MiB'):
    """An array of four drives in RAID 10."""
    names = [f'{name}-d{i}' for i in range(4)]
    return drives(names, size) + raid(f'{name}-set', 'raid10', names, journal='1MiB')


def members():
    text = ''
    for name in ('array2', 'array3'):
        nested = hardware(name).replace('[[drive]]', '[[member.drive]]')
        text += f'[[member]]\nname = "{name}"\n' + nested.replace('[[raid]]', '[[member.raid]]')
    return text


class Morning:
    """Times each step and counts its commands."""

    def __init__(self, t):
        self._test = t
        self._commands = 0
        self.daemon = None
        self.seconds = 0

    def do(self, *words, **options):
        self._commands += 1
        return self.daemon.sandbay(*words, **options)

    def step(self, name, work):
        before, begun = self._commands, time.monotonic()
        work()
        seconds = time.monotonic() - begun
        self.seconds += seconds
        document, steps = DOCUMENT[name]
        line = (f'{name:28} {self._commands - before:4} commands {seconds:7.2f} s   '
                f'document: {steps:3} steps, {document:4} s')
        self._test.say(line)

    def count(self):
        self._commands += 1


def unique(number):
    """Where the data of one snapshot stand, and their byte."""
    return number * 64 * KIB, 1 + number


def take_snapshots(t, morning):
    for number in range(SNAPSHOTS):
        at, byte = unique(number)
        qemu_io(t, morning.daemon, 'v9', f'write -P {byte} {at} 64k')
        morning.do('snapshot', 'create', 'v9', f's{number}')


def restore_snapshots(t, morning):
    """Each shows its own data and those before it, and what came later not yet."""
    for number in range(SNAPSHOTS):
        morning.do('snapshot', 'restore', 'v9', f's{number}')
        at, byte = unique(number)
        qemu_io(t, morning.daemon, 'v9', f'read -P {byte} {at} 64k', 'read -P 1 0 64k',
                f'read -P 200 {at + 64 * KIB} 64k', 'read -P 201 8M 4M')


def test_the_administrators_morning(t):
    t.need('qemu-io')
    morning = Morning(t)

    def initialise():
        morning.daemon = t.daemon([], extra=hardware('array1') + members())
        morning.count()

    def configure():
        for noun in ('group', 'member', 'raid', 'drive'):
            morning.do(noun, *(['show'] if noun == 'group' else ['list']))

    def make_pools():
        morning.do('pool', 'create', 'default', '--page', '1MiB')
        morning.do('pool', 'create', 'second', '--page', '1MiB')

    def create_volumes():
        for number in range(20):
            name = f'hr{number}' if number < 6 else f'v{number}'
            morning.do('volume', 'create', name, '--pool', 'default', '--size', '8MiB',
                       '--initiator', '*')

    def delete_volumes():
        for number in range(6):
            morning.do('volume', 'delete', f'hr{number}')

    morning.step('initialise the first array', initialise)
    morning.step('configure the group', configure)
    morning.step('make two pools', make_pools)
    morning.step('create 20 volumes', create_volumes)
    daemon = morning.daemon
    loads = [Load(t, daemon.url(name), '--queue-depth', '2', '--rate', '100', '--block-size',
                  '16KiB') for name in ('v6', 'v7', 'v8')]
    morning.step('delete six volumes', delete_volumes)
    qemu_io(t, daemon, 'v9', 'write -P 200 0 8M')
    free = the_pool(daemon, 'default')['free']
    morning.step('take a snapshot', lambda: morning.do('snapshot', 'create', 'v9', 'first'))
    t.check(free - the_pool(daemon, 'default')['free'] <= 3 * MIB, 'it takes no space at first')

    for name, step in (('array2', 'add the second member'), ('array3', 'add the third member')):
        before = the_pool(daemon, 'default')['free']
        morning.step(step, lambda name=name: morning.do('member', 'add', name, '--pool', 'default'))
        gained = the_pool(daemon, 'default')['free'] - before
        t.check(gained > 200 * MIB, f'its space can be used at once: {gained}')
    for name in ('array2', 'array3'):
        t.until(lambda name=name: bytes_on(daemon, name) > 20 * MIB, f'{name} gets its share', 60)

    def expand():
        morning.do('volume', 'expand', 'v9', '--size', '12MiB')
        qemu_io(t, daemon, 'v9', 'write -P 201 8M 4M', 'read -P 200 0 8M', 'read -P 201 8M 4M')

    morning.step('add space to a volume', expand)

    morning.step('take thirty snapshots', lambda: take_snapshots(t, morning))
    morning.step('restore each of the thirty', lambda: restore_snapshots(t, morning))
    for number, load in enumerate(loads):
        load.require_running(f'load {number}')
    for load in loads:
        load.require_good()
    require_whole(t, daemon, 'at noon')
    t.check(all(the_member(daemon, name)['health'] == 'good' for name in ('array2', 'array3')),
            'all members are good')
    t.say(f'{"all":28} {sum(s for s, _ in DOCUMENT.values()):.0f} s in the document, '
          f'{morning.seconds:.1f} s here')
