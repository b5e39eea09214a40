"""The lab's live runs: over real sockets a modelled system does what it does in virtual time;
targets elsewhere are run against, or refused in one line.
"""
import json
import os
import signal

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


# Within a tenth of each other, because other tests take this machine's time meanwhile; stretched so
# far that it matters little. One per system: drives read ahead, drives and a cache that destages
# under hundreds of requests, 124 drives.
def test_live_runs_agree_with_virtual_time(t):
    for system, row, ramp, seconds, scale in (
            (GIGASTOR, 'one drive, read/64KiB', 1, 3, 2),
            ('equallogic-ps3800xv', 'RAID 10, four volumes, members 1', 0.5, 1.5, 4),
            ('compellent-san', 'dedicated, random read', 0.5, 1, 6)):
        words = ['--only', row, '--ramp', ramp, '--seconds', seconds]
        virtual = report(t, system, *words)
        live = report(t, system, *words, '--live', '--time-scale', scale)
        t.check(live['time_scale'] == scale and live['live'], f'{system}: says how it was run')
        t.check(live['real_seconds'] > (ramp + seconds) * scale, f'{system}: in real time')
        expected = figures(virtual)
        found = figures(live)
        t.check(set(expected) == set(found) and found, f'{system}: the same figures')
        for figure, value in expected.items():
            t.say(f'{figure}: {value:.2f} in virtual time, {found[figure]:.2f} live')
            t.check(abs(found[figure] - value) <= 0.1 * value,
                    f'{figure}: {value} in virtual time, {found[figure]} live')


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
            ([*ONE_DRIVE, '--time-scale', 2], ['--live'])):
        lines = lab(t, GIGASTOR, *words, ok=False).splitlines()
        t.check(len(lines) == 1 and all(part in lines[0] for part in parts),
                f'one line with {parts}: {lines}')


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
    t.check('istor-jbod-r ' in text and 'istor-wide-r1 ' not in text, f'the first case: {text}')
    t.check('the report is partial: wide, read, connections 1: it was stopped' in text, text)
