"""The lab's live runs: over real sockets a modelled system does what it does in virtual time;
targets elsewhere are run against, or refused in one line.
"""
import concurrent.futures
import json
import os
import signal

import test_arrays
from harness import TOP

GIGASTOR = 'istor-gigastor'
ONE_DRIVE = ['--only', 'one drive, read/64KiB', '--ramp', '0.2', '--seconds', '1']


def lab(t, system, *words, ok=True):
    """What `sandbay lab run` prints."""
    return t.run(t.program('sandbay'), 'lab', 'run',
                 os.path.join(TOP, 'conf', 'lab', f'{system}.toml'), *words, ok=ok).stdout


def report(t, system, *words):
    text = lab(t, system, '--json', *words, ok=None)
    return json.loads(text[text.index('{'):text.rindex('}') + 1])


def figures(found):
    return {each['figure']: each['value'] for each in found['figures']}


def agrees(t, expected, found):
    """Whether all figures are within 5 per cent of what they are in virtual time. More by
    more than that is never the machine's fault."""
    for figure, value in expected.items():
        t.say(f'{figure}: {value:.2f} in virtual time, {found[figure]:.2f} live')
        t.check(found[figure] <= 1.05 * value, f'{figure}: not faster than in virtual time')
    return all(abs(found[figure] - value) <= 0.05 * value for figure, value in expected.items())


def live_agrees(t, system, row, ramp, seconds, scale):
    words = ['--only', row, '--ramp', ramp, '--seconds', seconds]
    expected = figures(report(t, system, *words))
    for _ in range(3):
        live = report(t, system, *words, '--live', '--time-scale', scale)
        t.check(live['time_scale'] == scale and live['live'], f'{system}: says how it was run')
        t.check(live['real_seconds'] > (ramp + seconds) * scale, f'{system}: in real time')
        found = figures(live)
        t.check(set(expected) == set(found) and found, f'{system}: the same figures')
        if agrees(t, expected, found):
            return
    t.check(False, f'{system}: {expected} in virtual time, {found} live')


# One row of each system: a drive that reads ahead; drives and a cache that destages under hundreds
# of requests; 124 drives. Time is stretched, so the three take little CPU time and run side by
# side. Each has three attempts, because other work on this machine makes live systems late, and
# never early.
def test_live_runs_agree_with_virtual_time(t):
    runs = ((GIGASTOR, 'one drive, read/64KiB', 1, 3, 2),
            ('equallogic-ps3800xv', 'RAID 10, four volumes, members 1', 2, 2, 6),
            ('compellent-san', 'dedicated, random read', 0.5, 2, 6))
    with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
        for done in [pool.submit(live_agrees, t, *run) for run in runs]:
            done.result()


test_live_runs_agree_with_virtual_time.minutes = 1


# The same array as sandbayd runs it: RAID 5 of four drives over two ports.
def test_a_daemon_is_as_fast_as_its_array_in_virtual_time(t):
    scale = 2
    daemon = test_arrays.start(t, GIGASTOR, lambda text: text.replace(
        '[group]\n', f'[group]\ntime_scale = {scale}\n'))
    portals = ','.join(f'127.0.0.1:{daemon.ports[port]}' for port in (3260, 3261))
    url = f'iscsi://{portals}/{test_arrays.GIGASTOR}volume1/0'
    # Writes have the drives' pace when the cache is full.
    words = ['--only', 'r5x4, write, volumes 1/64KiB', '--ramp', 12, '--seconds', 3]
    expected = figures(report(t, GIGASTOR, *words))
    live = [*words, '--live', url, '--write', '--time-scale', scale]
    good = any(agrees(t, expected, figures(report(t, GIGASTOR, *live))) for _ in range(3))
    t.check(good, f'{expected} in virtual time')
    t.check(daemon.terminate() == 0, 'it did not end well')


test_a_daemon_is_as_fast_as_its_array_in_virtual_time.minutes = 1


def test_a_live_run_against_a_target_elsewhere(t):
    daemon = t.daemon([{'name': 'disk', 'size': '256MiB'}])
    found = report(t, GIGASTOR, *ONE_DRIVE, '--live', daemon.url())
    t.check(found['targets'] == [daemon.url()], f'the report names the target: {found["targets"]}')
    t.check(figures(found)['istor-jbod-r'] > 0, 'something was read')
    for words, parts in (
            ([*ONE_DRIVE, '--live', daemon.url().replace('disk', 'other')], ['other/0', 'target']),
            (['--only', 'one drive, write', '--live', daemon.url()], ['--write']),
            (['--only', 'r5x4, read, volumes 2', '--live', daemon.url()], ['volumes 2 has 2']),
            (['--only', 'r5x16, read, volumes 1', '--live', daemon.url()],
             ['has 256 MiB', '100 GiB']),
            (['--only', 'no such row'], ['no such row', 'lab list']),
            ([*ONE_DRIVE, '--time-scale', 2], ['--live']),
            ([*ONE_DRIVE, '--live', daemon.url(), '--live', daemon.url().replace('/0', '/1')],
             ['URLs for 2 volumes']),
            ([*ONE_DRIVE, '--html', ''], ['--html', 'is empty']),
            ([*ONE_DRIVE, '--json', '--csv'], ['--csv', 'beside --json']),
            ([*ONE_DRIVE, '--seconds', 'nan'], ['--seconds: nan'])):
        said = lab(t, GIGASTOR, *words, ok=False)
        lines = [json.loads(said)['error']['message']] if '--json' in words else said.splitlines()
        t.check(len(lines) == 1 and all(part in lines[0] for part in parts),
                f'one line with {parts}: {lines}')


def test_a_row_that_does_not_fit_a_target_elsewhere_stops_no_other(t):
    daemon = t.daemon([{'name': 'disk', 'size': '256MiB'}])
    text = lab(t, GIGASTOR, '--live', daemon.url(), '--only', 'r5x16, read, volumes 1/64KiB',
               '--only', 'wide, read, connections 1/64KiB', '--ramp', 0, '--seconds', 1, ok=False)
    t.check('istor-wide-r1 ' in text, f'what fits was run: {text}')
    t.check('the report is partial: r5x16, read, volumes 1: ' in text and '100 GiB' in text,
            f'and what does not is told: {text}')


def test_an_interrupted_live_run_reports_what_was_done(t):
    daemon = t.daemon([{'name': 'disk', 'size': '256MiB'}])
    process = t.start(t.program('sandbay'), 'lab', 'run',
                      os.path.join(TOP, 'conf', 'lab', f'{GIGASTOR}.toml'),
                      '--live', daemon.url(), '--only', 'one drive, read/64KiB',
                      '--only', 'wide, read, connections 1', '--ramp', 0, '--seconds', 3,
                      log='lab.log')
    sessions = set()

    def in_second_case():
        sessions.update(each['tsih'] for each in daemon.sandbay_json('session', 'list')['sessions'])
        return len(sessions) == 2
    t.until(in_second_case, 'the second case has a session')
    process.send_signal(signal.SIGINT)
    process.wait(20)
    with open(t.path('lab.log'), encoding='utf-8') as stream:
        text = stream.read()
    t.check(process.returncode == 1, f'exit code {process.returncode}')
    t.check('istor-jbod-r ' in text and '1 not run.' in text, f'the first case: {text}')
    t.check(any('istor-wide-r1 ' in line and 'not run, ' in line for line in text.splitlines()),
            f'the second one was not run: {text}')
    t.check('the report is partial: wide, read, connections 1: it was stopped' in text, text)
