"""Power cuts of a running daemon under load: the drives lose what was not flushed, the process ends
at that instant, and after the next start every write that was acknowledged is there.

The host stays attached over all cuts. The volumes have no write cache, so what is acknowledged has
to be on stable storage; with one, the load finds what was lost, which shows that it looks.
"""
import signal
import time

from raid_lab import Load, drives, faults, kinds, raid, the_set, whole

NVRAM = '[nvram]\nsize = "40MiB"\n'
CUTS = 4


def bay(t, level, count, sections='', write_cache=False, **keys):
    names = [f'd{i}' for i in range(count)]
    return t.daemon(
        [{'name': 'v', 'raid': 'r', 'size': '24MiB', 'write_cache': write_cache}],
        extra=(drives(names, '32MiB', enclosure='shelf') + raid('r', level, names, **keys) +
               sections + faults(seed=7)))


def cut(t, daemon, *words):
    """Adds the rule that cuts the power, and waits for the end that a power cut is."""
    daemon.sandbay('fault', 'add', 'at=enclosure:shelf', *words, 'do=power.cut', ok=None)
    t.until(lambda: not daemon.alive(), 'the power is cut')
    code = daemon.process.returncode
    t.check(code == -signal.SIGKILL, f'the daemon ends without a word: {code}')


def survive_cuts(t, daemon, *words):
    """Cuts the power under load again and again, and verifies what was written before."""
    load = Load(t, daemon.url('v'), '--queue-depth', '8', '--rate', '1500', *words)
    for number in range(CUTS):
        time.sleep(0.5)
        load.require_running(f'before cut {number + 1}')
        cut(t, daemon, 'op=write', f'after={17 + 31 * number}')
        daemon.start()
        t.check(the_set(daemon, 'r')['running'], f'the set runs after cut {number + 1}')
    time.sleep(0.5)
    report = load.require_good()
    t.check(report['connections_lost'] >= CUTS, 'the load was attached at every cut')
    t.check(report['write']['requests'] > 500, 'there was load')
    t.until(lambda: the_set(daemon, 'r')['progress']['kind'] == 'nothing', 'the set is at rest', 60)
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    shown = the_set(daemon, 'r')
    t.check(shown['counters']['mismatches'] == 0, f'redundancy is consistent: {shown["counters"]}')
    t.check(not shown['lost'], f'nothing is lost: {shown["lost"]}')
    return shown


def test_power_cuts_with_the_journal_on_drives(t):
    daemon = bay(t, 'raid5', 4, journal='4MiB')
    survive_cuts(t, daemon)
    t.check('journal replayed' in kinds(daemon), 'the journal was needed')


def test_power_cuts_with_the_journal_in_nvram(t):
    daemon = bay(t, 'raid6', 5, sections=NVRAM, journal='nvram')
    survive_cuts(t, daemon)
    t.check('journal replayed' in kinds(daemon), 'the journal was needed')
    t.check('nvram lost' not in kinds(daemon), 'the battery kept the NVRAM')


def test_power_cuts_while_a_drive_is_missing(t):
    daemon = bay(t, 'raid5', 4, journal='4MiB')
    daemon.sandbay('drive', 'fail', 'd2')
    shown = survive_cuts(t, daemon)
    t.check(shown['roles'][2]['state'] == 'failed', f'd2 is still out: {shown["roles"]}')


def test_power_cuts_of_mirrors(t):
    daemon = bay(t, 'raid10', 4)
    survive_cuts(t, daemon)


def test_power_cuts_with_integrity(t):
    daemon = bay(t, 'raid60', 8, integrity=True, journal='4MiB')
    shown = survive_cuts(t, daemon)
    t.check(shown['integrity'], 'integrity is on')


def test_power_cuts_with_nvram_that_has_no_battery(t):
    """What the NVRAM loses with the power was not relied upon."""
    daemon = bay(t, 'raid5', 4, sections=NVRAM + 'battery = "dead"\n', journal='nvram')
    survive_cuts(t, daemon)
    t.check('nvram lost' in kinds(daemon), 'the NVRAM lost its content')


def test_a_power_cut_during_recovery(t):
    daemon = bay(t, 'raid5', 4, journal='4MiB')
    load = Load(t, daemon.url('v'), '--queue-depth', '8', '--rate', '1500')
    time.sleep(1)
    cut(t, daemon, 'op=write', 'after=100')
    # The rules of the file hold from the first operation of the start on.
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    for number in range(1, 40, 6):
        rule = f'at=enclosure:shelf op=write after={number} do=power.cut'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text.replace('rules = []', f'rules = ["{rule}"]'))
        process = t.start(t.program('sandbayd'), *daemon.arguments, log=f'cut{number}.log')
        t.until(lambda: process.poll() is not None, f'write {number} of the start is cut')
        t.check(process.returncode == -signal.SIGKILL, f'by the rule: {process.returncode}')
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text)
    daemon.start()
    t.check(the_set(daemon, 'r')['running'], 'the set runs after all')
    time.sleep(1)
    load.require_good()
    t.until(lambda: whole(daemon, 'r'), 'the set is whole')
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    t.check(the_set(daemon, 'r')['counters']['mismatches'] == 0, 'parity is consistent')


def test_what_was_not_flushed_is_gone(t):
    """With a write cache the host has to flush; this one does not, and its verification tells."""
    daemon = bay(t, 'jbod', 1, write_cache=True)
    load = Load(t, daemon.url('v'), '--queue-depth', '8', '--rate', '1500')
    time.sleep(2)
    cut(t, daemon, 'loss=all')
    daemon.start()
    time.sleep(1)
    report = load.end()
    t.check(report['errors'] == 0, f'no request fails: {report["first_error"]}')
    t.check(report['miscompares'] > 0, 'what was only acknowledged is gone with the power')
