"""The command line and REST against a running daemon; configurations that are refused."""
import json
import os
import time
import urllib.request

import harness
from raid_lab import Load, drives, faults, raid
from test_members import member
from test_pool import pool

MIB = 1 << 20
REFUSED, USAGE, NOT_NOW, CONFLICT = 2, 2, 3, 5


def rows(daemon, noun, *words):
    answer = daemon.sandbay_json(noun, 'list', *words)
    return next(v for v in answer.values() if isinstance(v, list)) if isinstance(
        answer, dict) else answer


def test_volume_scenario(t):
    """Create, use, expand, rename, delete; every refusal is one line that says why."""
    t.need('qemu-io', 'qemu-img')
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'one', '--size', '16MiB')
    daemon.sandbay('access', 'add', 'one', '--initiator', '*')
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 1M', daemon.url('one'))
    daemon.sandbay('volume', 'create', 'one', '--size', '16MiB')
    other = daemon.sandbay('volume', 'create', 'one', '--size', '32MiB', ok=False)
    one_line(t, other.stdout, 'one')
    daemon.sandbay('volume', 'expand', 'one', '--size', '64MiB')
    info = json.loads(t.run('qemu-img', 'info', '--output=json', '-f', 'raw',
                            daemon.url('one')).stdout)
    t.check(info['virtual-size'] == 64 * MIB, str(info))
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 1 0 1M', '-c', 'write -P 2 63M 1M',
          daemon.url('one'))
    smaller = daemon.sandbay('volume', 'expand', 'one', '--size', '16MiB', ok=False)
    one_line(t, smaller.stdout, 'one')
    names = {row['name']: row['size'] for row in rows(daemon, 'volume')}
    t.check(names == {'disk': 64 * MIB, 'one': 64 * MIB}, str(names))
    daemon.sandbay('volume', 'delete', 'one')
    t.check({row['name'] for row in rows(daemon, 'volume')} == {'disk'}, 'one is still there')
    t.check(not any(name.startswith('one') for name in os.listdir(daemon.state)), 'its file stays')
    gone = daemon.sandbay('volume', 'show', 'one', ok=False)
    one_line(t, gone.stdout, 'one')
    t.run('iscsi-inq', daemon.url('one'), ok=False)


def one_line(t, output, word):
    lines = output.strip().splitlines()
    t.check(len(lines) == 1 and word in lines[0], f'not one line about {word}: {output!r}')


def test_a_load_tells_another_volume_of_the_same_name_from_lost_data(t):
    daemon = t.daemon()
    make = ('volume', 'create', 'one', '--size', '16MiB', '--initiator', '*')
    daemon.sandbay(*make)
    load = Load(t, daemon.url('one'), '--rate', '500')
    t.until(lambda: rows(daemon, 'session'), 'a session')
    time.sleep(1)
    daemon.sandbay('volume', 'delete', '--force', 'one')
    daemon.sandbay(*make)
    t.until(lambda: not load.running(), 'the load ends by itself', 60)
    report = load.end()
    t.check(report['errors'] > 0 and report['miscompares'] == 0 and
            'not the one that the load began with' in report['first_error'], str(report))


def test_volume_in_use_is_not_deleted(t):
    """Refused while a session is attached, done with --force."""
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'busy', '--size', '16MiB', '--initiator', '*')
    t.start('qemu-io', '-f', 'raw', '-c', 'sleep 60000', daemon.url('busy'))
    t.until(lambda: rows(daemon, 'session'), 'a session')
    done = daemon.sandbay('volume', 'delete', 'busy', ok=False)
    t.check(done.returncode == CONFLICT, f'exit code {done.returncode}')
    one_line(t, done.stdout, 'busy')
    daemon.sandbay('volume', 'delete', '--force', 'busy')
    t.until(lambda: not rows(daemon, 'session'), 'its session ends')
    daemon.require_alive()


def test_access_scenario(t):
    """A record lets its initiator in, with CHAP where it says so; without one, nobody."""
    t.need('iscsi-inq')
    daemon = t.daemon()
    daemon.sandbay('volume', 'create', 'shut', '--size', '16MiB')
    t.run('iscsi-inq', daemon.url('shut'), ok=False)
    secret = t.path('secret')
    with open(secret, 'w', encoding='ascii') as stream:
        stream.write('correct-horse-battery\n')
    daemon.sandbay('access', 'add', 'shut', '--initiator', '*', '--chap-user', 'alice',
                   '--chap-secret-file', secret)
    t.run('iscsi-inq', daemon.url('shut'), ok=False)
    t.run('iscsi-inq', daemon.url('shut', user='alice%correct-horse-battery'))
    listed = daemon.sandbay('--json', 'access', 'list', 'shut').stdout
    t.check('correct-horse' not in listed, 'the secret is shown')
    record = rows(daemon, 'access', 'shut')[0]
    daemon.sandbay('access', 'remove', 'shut', record['id'])
    t.run('iscsi-inq', daemon.url('shut', user='alice%correct-horse-battery'), ok=False)


def test_session_list_and_drop(t):
    daemon = t.daemon()
    t.start('qemu-io', '-f', 'raw', '-c', 'sleep 60000', daemon.url())
    row = t.until(lambda: next(iter(rows(daemon, 'session')), None), 'a session')
    t.check(row['target'] == harness.NAME_PREFIX + 'disk' and len(row['connections']) == 1,
            json.dumps(row))
    t.check('LOGGED_IN' in row['state'], row['state'])
    t.check(row['initiator'] in daemon.sandbay('session', 'list').stdout, 'not in the table')
    daemon.sandbay('session', 'drop', row['tsih'])
    t.until(lambda: row['tsih'] not in [r['tsih'] for r in rows(daemon, 'session')], 'it ends')
    done = daemon.sandbay('session', 'drop', 65535, ok=False)
    one_line(t, done.stdout, '65535')


def get(daemon, path):
    with urllib.request.urlopen(f'http://{daemon.management}{path}', timeout=20) as answer:
        return answer.read().decode()


def test_rest_describes_itself(t):
    """The OpenAPI document names every path that the command line uses; metrics are text."""
    daemon = t.daemon()
    document = json.loads(get(daemon, '/api/v1/openapi.json'))
    t.check(document['openapi'].startswith('3.'), document['openapi'])
    for path in ('/group', '/volumes', '/volumes/{name}', '/volumes/{name}/access', '/targets',
                 '/sessions', '/sessions/{tsih}'):
        full = [known for known in document['paths'] if known.endswith(path)]
        t.check(full, f'{path} is not described')
    metrics = get(daemon, '/metrics')
    t.check('# TYPE sandbay_' in metrics, metrics[:500])
    t.check(daemon.sandbay_json('group', 'show')['name'] == 'e2e', 'group show')


def test_metrics_count_what_rest_counts(t):
    """Each counter of drives and sets in REST is a family of its own, by its name."""
    extra = faults('id=f at=drive:d0 p=0 do=fail') + drives(['d0', 'd1'], '96MiB')
    daemon = t.daemon([], extra=extra + raid('a', 'raid1', ['d0', 'd1'], journal='1MiB'))
    metrics = get(daemon, '/metrics')
    for noun, label, name in (('drive', 'drive', 'd0'), ('raid', 'set', 'a')):
        counters = daemon.sandbay_json(noun, 'show', name)['counters']
        for key in counters:
            sample = f'sandbay_{noun}_{key}_total{{{label}="{name}"}} '
            t.check(sample in metrics, f'{sample} is missing')
    for key in ('unreadable_blocks', 'recovered_errors_total', 'wear_ratio',
                'temperature_celsius'):
        t.check(f'sandbay_drive_{key}{{drive="d0"}} ' in metrics, f'{key} is missing')
    for key in ('matched', 'fired', 'struck', 'spared'):
        t.check(f'sandbay_fault_rule_{key}_total{{rule="f"}} 0' in metrics, f'{key} is missing')
    t.check('sandbay_fault_rule_active{rule="f"} 0' in metrics, 'active is missing')


def test_a_generated_client_works(t):
    """Debian's OpenAPI::Client makes a client of the document alone; see openapi_client.pl."""
    t.need('perl')
    if t.run('perl', '-MOpenAPI::Client', '-e', '1', ok=None).returncode != 0:
        raise harness.Skipped('libopenapi-client-perl is not installed')
    extra = (faults() + drives(['d0', 'd1'], '96MiB') +
             raid('a', 'raid1', ['d0', 'd1'], journal='1MiB') + member('two') + pool())
    daemon = t.daemon([], extra=extra)
    script = os.path.join(harness.TOP, 'tests', 'e2e', 'openapi_client.pl')
    done = t.run('perl', script, f'http://{daemon.management}')
    t.say(done.stdout.strip())
    daemon.require_alive()


BAD = [
    ('size = "64MiB"', 'size = "64 potatoes"', 'size'),
    ('size = "64MiB"', 'size = 64', 'size'),
    ('name = "disk"', 'name = "disk/../x"', 'name'),
    ('name = "disk"', 'name = "disk"\nsise = 3', 'sise'),
    ('[management]', '[managment]', 'managment'),
    ('initiator = "*"', 'initiator = 7', 'initiator'),
    ('listen = "127', 'listen = "elsewhere.127', 'listen'),
    ('[[volume]]', '[[volume]', ''),
]


def test_bad_configurations_exit_with_2_and_one_line(t):
    """The line names file, line and key; --check says the same."""
    text = harness.configuration('e2e', ['127.0.0.1:1'], '127.0.0.1:2', t.path('state'),
                                 [{'name': 'disk', 'size': '64MiB'}], '')
    path = t.path('bad.toml')
    for old, new, key in BAD:
        t.check(old in text, f'{old} is not in the text')
        broken = text.replace(old, new, 1)
        number = next(n for n, (a, b) in enumerate(
            zip(text.splitlines(), broken.splitlines()), 1) if a != b)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(broken)
        for check in ((), ('--check',)):
            done = t.run(t.program('sandbayd'), '--config', path, *check, ok=False, seconds=20)
            t.check(done.returncode == REFUSED, f'{new}: exit code {done.returncode}')
            lines = done.stdout.strip().splitlines()
            t.check(check or len(lines) == 1, f'{new}: {done.stdout}')
            t.check(any(f'{path}:{number}' in line and key in line for line in lines),
                    f'{new}: expected {path}:{number} and {key}: {done.stdout}')
    done = t.run(t.program('sandbayd'), '--config', t.path('absent.toml'), ok=False, seconds=20)
    t.check(done.returncode == REFUSED, f'exit code {done.returncode}')
    one_line(t, done.stdout, 'absent.toml')


def test_shipped_configurations_are_good(t):
    for folder in ('conf', 'conf/arrays'):
        for name in sorted(os.listdir(os.path.join(harness.TOP, folder))):
            if name.endswith('.toml'):
                t.run(t.program('sandbayd'), '--check', '--config', f'{folder}/{name}',
                      cwd=harness.TOP)


def test_port_that_is_taken(t):
    """A second daemon on the same portal is refused with one line; the first goes on."""
    first = t.daemon()
    done = t.run(t.program('sandbayd'), '--config', 'conf/quickstart.toml', '--portal',
                 first.portal, '--management', f'127.0.0.1:{harness.PORTS.take()}', '--state',
                 t.path('other'), ok=False, seconds=30, cwd=harness.TOP)
    t.check(done.returncode == NOT_NOW, f'exit code {done.returncode}')
    t.check(first.portal in done.stdout.strip().splitlines()[-1], done.stdout)
    first.require_alive()


def test_state_that_is_in_use(t):
    """A second daemon on the same state directory is refused with one line."""
    first = t.daemon()
    done = t.run(t.program('sandbayd'), '--config', 'conf/quickstart.toml', '--portal',
                 f'127.0.0.1:{harness.PORTS.take()}', '--management',
                 f'127.0.0.1:{harness.PORTS.take()}', '--state', first.state,
                 ok=False, seconds=30, cwd=harness.TOP)
    t.check(done.returncode == NOT_NOW, f'exit code {done.returncode}')
    t.check(first.state in done.stdout.strip().splitlines()[-1], done.stdout)
    first.require_alive()


def without_io_uring(t):
    if os.uname().machine != 'x86_64':
        raise harness.Skipped('the filter is written for x86-64')
    return os.path.join(harness.TOP, 'tests/e2e/without_io_uring')


def test_io_uring_that_is_asked_for_and_forbidden_is_refused(t):
    """In a container that forbids io_uring: one line that says so, and exit code 2."""
    done = t.run(without_io_uring(t), t.program('sandbayd'), '--io', 'io_uring',
                 '--config', 'conf/quickstart.toml', '--portal',
                 f'127.0.0.1:{harness.PORTS.take()}', '--management',
                 f'127.0.0.1:{harness.PORTS.take()}', '--state', t.path('state'),
                 ok=False, seconds=30, cwd=harness.TOP)
    t.check(done.returncode == REFUSED, f'exit code {done.returncode}\n{done.stdout}')
    last = done.stdout.strip().splitlines()[-1]
    t.check('io_uring' in last, done.stdout)
    t.say(last)


def test_where_io_uring_is_forbidden_epoll_takes_its_place(t):
    t.need('qemu-io')
    daemon = t.daemon(wrapper=[without_io_uring(t)])
    with open(daemon.log, encoding='utf-8') as stream:
        lines = [line for line in stream if 'epoll' in line]
    t.check(len(lines) == 1 and 'io_uring is not permitted here' in lines[0], f'{lines}')
    t.say(lines[0].strip())
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 7 0 8M', '-c', 'flush', daemon.url())
    daemon.kill()
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 0 8M', daemon.url())
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_odd_arguments(t):
    """What no option can mean is refused in one line, and no file is read without an end."""
    daemon = t.daemon()
    for number in ('-1', '99999999999999999999', 'x'):
        wrong = daemon.sandbay('event', 'list', f'--since={number}', ok=False)
        one_line(t, wrong.stdout, 'write a whole number')
    daemon.sandbay('volume', 'create', 'one', '--size', '16MiB')
    endless = daemon.sandbay('access', 'add', 'one', '--initiator', '*', '--chap-user', 'u',
                             '--chap-secret-file', '/dev/zero', ok=False)
    one_line(t, endless.stdout, 'no line end')
