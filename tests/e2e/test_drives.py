"""Drives and sets that cannot be: one clear line that names the drive or the set and the key, and
no byte written to a drive that is not ours. What operators do with drives.
"""
import hashlib
import os
import subprocess

from raid_lab import drives, events, faults, kinds, raid, the_drive, the_set


class Refusals:
    """Starts daemons that must not start, and compares what they say."""

    def __init__(self, t):
        self._t = t
        self._count = 0

    def state(self):
        self._count += 1
        path = self._t.path(f'refused{self._count}')
        os.makedirs(os.path.join(path, 'drives'))
        return path

    def start(self, state, sections, *words):
        path = self._t.path(f'refused{self._count}.toml')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(f'[group]\nname = "g"\nstate = "{state}"\n[management]\n'
                         f'listen = "127.0.0.1:0"\n[[portal]]\nlisten = "127.0.0.1:0"\n{sections}')
        return self._t.run(self._t.program('sandbayd'), '--config', path, *words, ok=False,
                           seconds=30)

    def expect(self, sections, *parts):
        """Refused by --check, and by a start, in one line that has all parts."""
        for words in (['--check'], []):
            done = self.start(self.state(), sections, *words)
            lines = [line for line in done.stdout.splitlines() if '.toml:' in line]
            self._t.check(done.returncode == 2, f'{parts}: refused: {done.stdout}')
            self._t.check(any(all(part in line for part in parts) for line in lines),
                          f'one line has {parts}: {done.stdout}')


def digest(path):
    with open(path, 'rb') as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def test_impossible_geometries_are_refused(t):
    refused = Refusals(t)
    for level, count, part in (('raid1', 1, '2'), ('raid5', 2, '3'), ('raid6', 3, '4'),
                               ('raid10', 3, '4'), ('raid50', 5, '6'), ('raid60', 7, '8'),
                               ('jbod', 2, '1'), ('raid0', 65, '64')):
        names = [f'd{i}' for i in range(count)]
        refused.expect(drives(names) + raid('r', level, names), 'raid[1]', '\'r\'', part)
    names = [f'd{i}' for i in range(7)]
    refused.expect(drives(names) + raid('r', 'raid50', names, groups=2), 'raid[1]', '7')
    names = names[:4]
    for strip, part in (('48KiB', 'power of two'), ('2KiB', '4KiB'), ('2MiB', '1MiB'),
                        ('5000B', 'strip')):
        refused.expect(drives(names) + raid('r', 'raid5', names, strip=strip), 'raid[1].strip',
                       part)
    refused.expect(drives(names, '8MiB') + raid('r', 'raid5', names), 'raid[1]', 'd0')


def test_a_drive_has_one_use(t):
    refused = Refusals(t)
    names = ['d0', 'd1', 'd2', 'd3']
    two = raid('r', 'raid1', ['d0', 'd1'])
    refused.expect(drives(names) + raid('r', 'raid5', ['d0', 'd1', 'd1']), 'raid[1].drives',
                   'drive d1')
    refused.expect(drives(names) + two + raid('q', 'raid1', ['d1', 'd2']), 'raid[2].drives',
                   'drive d1', 'set "r"')
    refused.expect(drives(names[1:], spares=('d0',)) + two, 'raid[1].drives', 'drive d0', 'spare')
    refused.expect(drives(names) + raid('r', 'raid1', ['d0', 'd9']), 'raid[1].drives', '"d9"')
    refused.expect(drives(['d0', 'd0']), 'drive[2]', '"d0"')
    same = drives(['d0', 'd1']).replace('drives/d1.img', './drives/../drives/d0.img')
    refused.expect(same + raid('r', 'raid1', ['d0', 'd1']), 'drive', '"d0"')


def test_one_file_by_two_names_is_refused(t):
    refused = Refusals(t)
    for link in (os.symlink, os.link):
        state = refused.state()
        first = os.path.join(state, 'drives', 'd0.img')
        with open(first, 'wb') as stream:
            stream.truncate(48 << 20)
        link(first, os.path.join(state, 'drives', 'd1.img'))
        before = digest(first)
        done = refused.start(state, drives(['d0', 'd1']) + raid('r', 'raid1', ['d0', 'd1']))
        t.check(done.returncode == 2 and 'd0' in done.stdout and 'd1' in done.stdout,
                f'{link.__name__}: both are named: {done.stdout}')
        t.check(digest(first) == before, f'{link.__name__}: nothing is written')


def test_drives_that_cannot_be_opened_are_told(t):
    """The group starts, says which drive it is and why, and makes no set of the rest."""
    names = ['d0', 'd1', 'd2']
    cases = {}

    def small(path):
        with open(path, 'wb') as stream:
            stream.truncate(1 << 20)

    def odd(path):
        with open(path, 'wb') as stream:
            stream.truncate((48 << 20) + 100)

    for make in (small, os.mkdir, odd):
        daemon = t.daemon(extra=drives(names) + raid('r', 'raid5', names), start=False)
        os.makedirs(os.path.join(daemon.state, 'drives'))
        make(os.path.join(daemon.state, 'drives', 'd1.img'))
        daemon.start()
        drive = the_drive(daemon, 'd1')
        cases[make.__name__] = drive['why']
        t.check(drive['use'] == 'absent' and drive['why'], f'{make.__name__}: {drive}')
        t.check('d1.img' in drive['why'], f'the file is named: {drive["why"]}')
        shown = the_set(daemon, 'r')
        t.check(not shown['running'] and 'd1' in shown['reason'], f'no set of the rest: {shown}')
        for name in ('d0', 'd2'):
            t.check(the_drive(daemon, name)['use'] == 'blank', f'{name} stays blank')
        daemon.terminate()
    for name, why in cases.items():
        t.say(f'{name}: {why}')


def test_drives_of_others_are_never_written(t):
    """With another group's superblock, or anything at all on it, a drive stays as it is until an
    operator erases it."""
    names = ['d0', 'd1', 'd2']
    other = t.daemon(extra=drives(names) + raid('theirs', 'raid5', names))
    t.check(other.terminate() == 0, 'an orderly end')
    ours = t.daemon(extra=(drives(['a0', 'a1'], spares=('a2',)) +
                           raid('ours', 'raid5', ['a0', 'a1', 'a3']) + drives(['a3'])),
                    start=False)
    folder = os.path.join(ours.state, 'drives')
    os.makedirs(folder)
    stranger = os.path.join(other.state, 'drives', 'd0.img')
    for name in ('a1', 'a2'):
        t.run('cp', '--sparse=always', stranger, os.path.join(folder, f'{name}.img'))
    with open(os.path.join(folder, 'a3.img'), 'wb') as stream:
        stream.write(b'somebody\'s file system' * 1000)
        stream.truncate(48 << 20)
    before = {name: digest(os.path.join(folder, f'{name}.img')) for name in ('a1', 'a2', 'a3')}
    ours.start()
    shown = the_set(ours, 'ours')
    t.check(not shown['running'] and 'a1' in shown['reason'] and 'erase a1' in shown['reason'],
            f'the drive and the way out are named: {shown["reason"]}')
    told = [event['text'] for event in events(ours) if event['kind'] == 'spare']
    t.check(told and 'drive a2' in told[0] and 'sandbay drive erase a2' in told[0], f'{told}')
    ours.sandbay('drive', 'replace', 'a0', '--by', 'a1', ok=False)
    t.check(ours.terminate() == 0, 'an orderly end')
    for name, was in before.items():
        t.check(digest(os.path.join(folder, f'{name}.img')) == was, f'{name} is as it was')
    ours.start()
    for name in ('a1', 'a2', 'a3'):
        ours.sandbay('drive', 'erase', name)
    t.check(the_drive(ours, 'a1')['use'] == 'blank', 'an operator may')
    t.check(the_drive(ours, 'a2')['use'] == 'spare', 'then it is the spare')
    t.check(ours.terminate() == 0, 'an orderly end')
    ours.start()
    t.check(the_set(ours, 'ours')['running'], 'and the set is made')
    refused = ours.sandbay('drive', 'erase', 'a1', ok=False).stdout
    t.check('a1' in refused, f'a member is not erased: {refused}')


def test_events_are_there_after_a_kill(t):
    names = ['d0', 'd1', 'd2', 'd3']
    daemon = t.daemon(extra=drives(names) + raid('r', 'raid5', names) + faults())
    daemon.sandbay('drive', 'fail', 'd1')
    before = events(daemon)
    t.check('drive failed' in [event['kind'] for event in before], 'the failure is told')
    subprocess.run(['sleep', '2'], check=True)  # Soon after, not at once, they are kept.
    daemon.kill()
    daemon.start()
    after = events(daemon)
    t.check(after[:len(before)] == before, f'all are there, as they were: {before} / {after}')
    numbers = [event['number'] for event in after]
    t.check(numbers == list(range(1, len(after) + 1)), f'numbers go on: {numbers}')
    t.check('drive failed' in daemon.sandbay('event', 'list').stdout, 'and are printed')
    t.check(kinds(daemon).count('set made') == 1, 'the set was made once')


def test_each_set_verifies_when_its_own_time_has_come(t):
    daemon = t.daemon(extra=(drives(['a0', 'a1', 'b0', 'b1'], '16MiB') +
                             raid('often', 'raid1', ['a0', 'a1'], verify_every='1s') +
                             raid('never', 'raid1', ['b0', 'b1'])))

    def ended(name):
        return sum(event['kind'] == 'verify ended' and event['set'] == name
                   for event in events(daemon))
    t.until(lambda: ended('often') >= 3, 'verified again and again')
    t.check(ended('never') <= 1, 'the other is not')
