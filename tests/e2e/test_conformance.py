"""libiscsi's iscsi-test-cu against the quickstart LUN and five others, judged by its log.

The tool counts a skipped test as passed. Here a test has passed if it ended well and skipped
nothing, is `partly` if it went on after skipping something, `skipped` if it ended there, `failed`
otherwise. iscsi-test-cu.expected names every test that need not pass, with the reason; any other
outcome than expected fails.
"""
import concurrent.futures
import os
import re

import harness
import host
from raid_lab import drives, faults, raid
from test_pool import pool

EXPECTED = os.path.join(os.path.dirname(__file__), 'iscsi-test-cu.expected')
QUICKSTART = os.path.join(harness.TOP, 'conf', 'quickstart.toml')
OUTCOMES = ('passed', 'partly', 'skipped', 'failed')
SUITE_SECONDS = 240
ALL_SECONDS = 900
TESTS_OF_THE_TOOL = 230


def parse(log):
    """{Suite.Test: (outcome, reason)} of one run's log."""
    results, suite = {}, ''
    parts = re.split(r'^(Suite: \S+|  Test: \S+ \.\.\.)', log, flags=re.M)
    for head, body in zip(parts[1::2], parts[2::2]):
        if head.startswith('Suite: '):
            suite = head[7:]
            continue
        test = head[len('  Test: '):-len(' ...')]
        ended = re.search(r'^(passed|FAILED)|(?<=\n)(passed|FAILED)', body, re.M)
        marks = re.findall(r'\[(OK|SUCCESS|SKIPPED|FAILED)\] ?(.*)', body[:ended.start()] if ended
                           else body)
        skipped = [text for mark, text in marks if mark == 'SKIPPED']
        if not ended:
            outcome, reason = 'failed', 'the tool ended in the middle of it'
        elif ended[0] == 'FAILED':
            complaints = [text for mark, text in marks if mark == 'FAILED']
            asserts = re.findall(r'^ +\d+\. (.*)', body[ended.start():], re.M)
            outcome, reason = 'failed', '; '.join(complaints[:1] + asserts[:1])
        elif skipped:
            outcome = 'skipped' if marks[-1][0] == 'SKIPPED' else 'partly'
            reason = skipped[-1].strip()
        else:
            outcome, reason = 'passed', ''
        results[f'{suite}.{test}'] = (outcome, reason)
    return results


def expectations(*sections):
    """{Suite.Test: outcome} of these sections and [all]; a name may end in `.*`."""
    expected, section = {}, ''
    with open(EXPECTED, encoding='utf-8') as stream:
        for line in stream:
            line = line.split('#')[0].strip()
            if line.startswith('['):
                section = line.strip('[]')
            elif line and section in ('all', *sections):
                name, outcome = line.split(None, 2)[:2]
                if outcome not in OUTCOMES:
                    raise harness.Failed(f'{EXPECTED}: outcome {outcome}?')
                expected[name] = outcome
    return expected


def judge(results, expected):
    """What differs. A test that does better than expected differs too: the file must be true."""
    wrong = []
    for name, (outcome, reason) in results.items():
        suite = name.split('.')[0]
        wanted = expected.get(name) or expected.get(f'{suite}.*') or 'passed'
        if outcome != wanted:
            why = f': {reason}' if reason else ''
            wrong.append(f'{name}: {outcome}, expected {wanted}{why}')
    names = set(results) | {f'{name.split(".")[0]}.*' for name in results}
    wrong += [f'{name}: expected but never run' for name in expected if name not in names]
    return wrong


def score_table(title, results):
    suites = {}
    for name, (outcome, _) in results.items():
        row = suites.setdefault(name.split('.')[0], dict.fromkeys(OUTCOMES, 0))
        row[outcome] += 1
    lines = [title, f'{"suite":24}' + ''.join(f'{o:>9}' for o in OUTCOMES)]
    for suite, row in suites.items():
        lines.append(f'{suite:24}' + ''.join(f'{row[o] or "·":>9}' for o in OUTCOMES))
    total = {o: sum(row[o] for row in suites.values()) for o in OUTCOMES}
    lines.append(f'{"all " + str(sum(total.values())):24}' +
                 ''.join(f'{total[o]:>9}' for o in OUTCOMES))
    reasons = {}
    for name, (outcome, reason) in results.items():
        if outcome != 'passed':
            reasons.setdefault(f'{outcome}: {reason}', []).append(name)
    lines += [f'  {reason}\n      {" ".join(names)}' for reason, names in sorted(reasons.items())]
    return '\n'.join(lines) + '\n'


def iscsi_test_cu(t, daemon, what, seconds, volume='quickstart'):
    """The log of one process; several portals give it its second path."""
    urls = [daemon.url(volume, portal=portal) for portal in daemon.portals]
    done = t.run('iscsi-test-cu', '--dataloss', '--allow-sanitize', '-V', '-t', what, *urls,
                 ok=None, seconds=seconds)
    with open(t.path(f'{volume}-{what}.log'), 'w', encoding='utf-8') as stream:
        stream.write(done.stdout)
    return done.stdout


def tests_of_the_tool(t, suite):
    listed = t.run('iscsi-test-cu', '-l', ok=None).stdout
    return re.findall(rf'^ALL\.({suite}\.\w+)$', listed, re.M)


def suites_of_the_tool(t):
    names = re.findall(r'^ALL\.(\w+)$', t.run('iscsi-test-cu', '-l', ok=None).stdout, re.M)
    return names


def conclude(t, title, results, *sections):
    """The mistakes, a line each."""
    t.scores = getattr(t, 'scores', '') + score_table(title, results)
    wrong = judge(results, expectations(*sections))
    if len(results) != TESTS_OF_THE_TOOL:
        wrong.insert(0, f'{len(results)} tests ran, not {TESTS_OF_THE_TOOL}')
    return [f'{title.strip()}: {each}' for each in wrong]


def require_nothing(t, wrong):
    t.check(not wrong, '\n'.join(wrong))


def test_parser_of_the_log(t):
    """The judge itself: passed, partly, skipped and failed are told apart."""
    log = ('Suite: A\n  Test: One ...\n    [OK] x\npassed  Test: Two ...    [SKIPPED] no medium\n'
           'passed    Send\n').replace('passed  Test', 'passed\n  Test')
    log += ('  Test: Three ...\n    [SKIPPED] no X\n    [OK] y\npassed\n  Test: Four ...\n'
            '    [FAILED] bad\nFAILED\n    1. a.c:3  - CU\nSuite: B\n  Test: One ...\n    [OK] x\n')
    outcomes = {name: outcome for name, (outcome, _) in parse(log).items()}
    t.check(outcomes == {'A.One': 'passed', 'A.Two': 'skipped', 'A.Three': 'partly',
                         'A.Four': 'failed', 'B.One': 'failed'}, str(outcomes))
    wrong = judge(parse(log), {'A.Two': 'skipped', 'B.*': 'failed', 'C.*': 'failed'})
    t.check(len(wrong) == 3, str(wrong))


def write_zeros(t, daemon):
    one = host.Host(t, daemon, 'quickstart')
    one.attentions()
    one.good(host.write_10(256, 1), data=bytes(512))
    one.close()


def test_iscsi_test_cu_each_suite_alone(t):
    t.need('iscsi-test-cu')
    # Most of the time the tool sleeps, so two daemons share the suites.
    daemons = [t.daemon(config=QUICKSTART, portals=('127.0.0.1', '127.0.0.1')) for _ in range(2)]
    suites = suites_of_the_tool(t)
    left, results = iter(suites), {}
    # This LUN is overwritten in about the tool's three seconds: that test is for the five LUNs.
    alone_in = {'Sanitize': [test for test in tests_of_the_tool(t, 'Sanitize')
                             if test != 'Sanitize.Reset']}

    def run_suites(daemon):
        for suite in left:
            if suite == 'MultipathIO':  # It compares block 256 with zeros that it has not written.
                write_zeros(t, daemon)
            for what in alone_in.get(suite, [suite]):
                log = iscsi_test_cu(t, daemon, f'ALL.{what}', SUITE_SECONDS)
                results.setdefault(suite, {}).update(parse(log))
            daemon.require_alive()
    with concurrent.futures.ThreadPoolExecutor(len(daemons)) as pool:
        for done in [pool.submit(run_suites, daemon) for daemon in daemons]:
            done.result()
    together = {name: outcome for suite in suites for name, outcome in results[suite].items()}
    together['Sanitize.Reset'] = ('skipped', 'it runs against the five LUNs')
    require_nothing(t, conclude(t, '\niscsi-test-cu, one process a suite', together, 'fixed',
                                'writable', 'physical', 'apart'))
    for daemon in daemons:
        t.check(daemon.terminate() == 0, 'SIGTERM ends sandbayd with 0')


def test_iscsi_test_cu_all_in_one_process(t):
    """The quickstart volume with physical blocks of 512 bytes. With larger ones the tool leaves a
    hook in place, where a test fails, that sets byte 13 of every later CDB to 1."""
    t.need('iscsi-test-cu')
    daemon = t.daemon([{'name': 'quickstart', 'size': '64MiB', 'physical_block_size': 512}],
                      portals=('127.0.0.1', '127.0.0.1'))
    results = parse(iscsi_test_cu(t, daemon, 'ALL', ALL_SECONDS))
    daemon.require_alive()
    require_nothing(t, conclude(t, '\niscsi-test-cu, all in one process', results, 'fixed',
                                'writable', 'single', 'quick', 'small'))


# A host overwrites a set in about eight seconds, so that the tool finds SANITIZE under way.
SLOW_DRIVES = ('at=drive:d0 op=write length=128.. do=slow latency=90ms',
               'at=drive:d1 op=write length=16.. do=slow latency=45ms',
               'at=drive:d2 op=write length=128.. do=slow latency=90ms')
# Their sections of the expectations.
FIVE = {'thin': ('fixed', 'writable', 'physical', 'small', 'filling'),
        'thick': ('fixed', 'writable', 'full', 'single', 'small'),
        'large': ('fixed', 'writable', 'single', 'small', 'large'),
        'locked': ('fixed', 'physical', 'small'),
        'removable': ('writable', 'physical', 'small')}
NO_PINGS = '[limits]\nnop_in_interval = "0s"\n'  # The tool sleeps for a minute at a time.
NOWHERE = 6  # Copy offload aside.


def five_luns(t):
    sets = (drives(['d0'], '256MiB') + drives(['d1'], '192MiB', block_size=4096) +
            drives(['d2'], '256MiB') + raid('thick', 'jbod', ['d0']) +
            raid('large', 'jbod', ['d1']) + raid('flat', 'jbod', ['d2']) + pool())
    return t.daemon(
        [{'name': 'thin', 'pool': 'p', 'size': '96MiB', 'thin': True, 'thin_warning': 100},
         {'name': 'thick', 'raid': 'thick', 'size': '96MiB', 'thin': False},
         {'name': 'large', 'raid': 'large', 'size': '160MiB', 'block_size': 4096},
         {'name': 'locked', 'pool': 'p', 'size': '96MiB', 'thin': True, 'read_only': True},
         {'name': 'removable', 'raid': 'thick', 'size': '96MiB', 'removable': True,
          'eui64': '0250c2fffe000001', 'rotation': 7200}],
        extra=sets + faults(*SLOW_DRIVES) + NO_PINGS, portals=('127.0.0.1', '127.0.0.1'))


# The tool does not say why these failed.
UNSAID = ('Write10.Async', 'iSCSITMF.AbortTaskSimpleAsync', 'Sanitize.Reset')


def wants_to_write(name, result):
    """On a read-only LUN the tool writes all the same, and takes the refusal for a failure."""
    return result[0] == 'failed' and ('(0x2700)' in result[1] or name in UNSAID)


def as_expected(name, expected):
    return expected.get(name) or expected.get(name.split('.')[0] + '.*') or 'passed'


def alone(t, daemon, volume, outcomes, expected):
    """Tests leave things behind, such as a RESERVE of a session that has not ended and unit
    attentions that the next does not expect: after a failure a test runs again by itself."""
    for name, (outcome, _) in outcomes.items():
        if outcome == 'failed' and as_expected(name, expected) != 'failed':
            outcomes |= parse(iscsi_test_cu(t, daemon, f'ALL.{name}', SUITE_SECONDS, volume))
    return outcomes


def test_iscsi_test_cu_on_five_luns(t):
    """In one configuration, each against its own process of the tool."""
    t.need('iscsi-test-cu')
    daemon = five_luns(t)

    def run(volume):
        expected = expectations(*FIVE[volume])
        outcomes = parse(iscsi_test_cu(t, daemon, 'ALL', ALL_SECONDS, volume))
        if volume != 'locked':
            return alone(t, daemon, volume, outcomes, expected)
        return {test: (as_expected(test, expected), '') if wants_to_write(test, result) else result
                for test, result in outcomes.items()}
    with concurrent.futures.ThreadPoolExecutor(len(FIVE)) as executor:
        results = dict(zip(FIVE, executor.map(run, FIVE)))
    daemon.require_alive()
    exercised = {name for outcomes in results.values() for name, (outcome, _) in outcomes.items()
                 if outcome in ('passed', 'partly')}
    nowhere = [name for name in results['thin'] if name not in exercised and
               not name.startswith(('ExtendedCopy.', 'ReceiveCopyResults.'))]
    t.check(len(nowhere) <= NOWHERE, f'exercised nowhere: {nowhere}')
    require_nothing(t, [each for name, sections in FIVE.items()
                        for each in conclude(t, f'\niscsi-test-cu, {name}', results[name],
                                             *sections)])


test_iscsi_test_cu_on_five_luns.minutes = 8
test_iscsi_test_cu_each_suite_alone.minutes = 5
test_iscsi_test_cu_all_in_one_process.minutes = 4
