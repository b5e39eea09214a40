"""[G-C13] The command line as scripts use it: exit codes by kind of failure, JSON from every verb;
[G-S6] and whom a daemon without tokens serves."""
import json
import os

import harness

USAGE, UNREACHABLE, NOT_FOUND, CONFLICT, FORBIDDEN, INVALID = 2, 3, 4, 5, 6, 7
STRANGER = 12345
POOL = ('[[drive]]\nname = "d0"\nmemory = true\nsize = "64MiB"\n'
        '[[raid]]\nname = "a"\nlevel = "jbod"\ndrives = ["d0"]\njournal = "1MiB"\n'
        '[[pool]]\nname = "p"\npage = "1MiB"\n[faults]\nenabled = true\n')


def words_of(text):
    return text.split()


def test_exit_codes_and_json_of_failures(t):
    daemon = t.daemon(extra=POOL)
    daemon.sandbay(*words_of('volume create v --size 8MiB --memory'))
    cases = [('volume show nothing', NOT_FOUND, 'not_found'),
             ('volume show', USAGE, 'usage'),
             ('volume frobnicate', USAGE, 'usage'),
             ('volume create v --size 16MiB --memory', CONFLICT, 'conflict'),
             ('volume create w! --size 1MiB --memory', INVALID, 'invalid'),
             ('volume create w --size 1MiB --file /etc/cron.d/w', FORBIDDEN, 'forbidden')]
    for text, code, word in cases:
        done = daemon.sandbay(*words_of(text), ok=False)
        t.check(done.returncode == code, f'{text}: exit code {done.returncode}, not {code}')
        t.check(len(done.stdout.strip().splitlines()) == 1, f'{text}: {done.stdout}')
        done = daemon.sandbay('--json', *words_of(text), ok=False)
        error = json.loads(done.stdout)['error']
        t.check(done.returncode == code and error['exit'] == code and error['code'] == word and
                error['message'], f'{text}: {done.stdout}')
    t.check(not os.path.exists('/etc/cron.d/w'), 'a file outside of volume_paths')
    done = t.run(t.program('sandbay'), '--management', 'http://127.0.0.1:1', 'volume', 'list',
                 ok=False)
    t.check(done.returncode == UNREACHABLE, f'no daemon: exit code {done.returncode}')


def test_every_verb_prints_json(t):
    daemon = t.daemon(extra=POOL)
    export = t.path('export.json')
    document = t.path('document.toml')
    with open(document, 'w', encoding='utf-8') as stream:
        stream.write('[[volume]]\nname = "m"\nsize = "1MiB"\nmemory = true\n')
    created = daemon.sandbay_json(*words_of('volume create v --size 8MiB --pool p --thin'))
    t.check(created['created'] is True, str(created))
    created = daemon.sandbay_json(*words_of('volume create v --size 8MiB --pool p --thin'))
    t.check(created['created'] is False, str(created))
    for text in ('volume list', 'volume show v', 'volume expand v --size 9MiB', 'volume limits v',
                 'access add v --initiator iqn.2026-11.org:x', 'access list v', 'access remove v 1',
                 'snapshot create v s', 'snapshot list v', 'snapshot show v s',
                 'snapshot schedule v daily --every 24h --keep 2', 'snapshot schedules v',
                 'snapshot unschedule v daily', 'snapshot clone v s c --full-copy --wait',
                 'snapshot delete v s', 'volume delete c', 'pool list', 'pool show p', 'task list',
                 'member list', 'drive list', 'raid list', 'raid verify a --wait', 'cache show',
                 'fault list', 'fault clear', 'event list',
                 'audit list', 'target list', 'session list', 'group show', 'portal list',
                 f'portal advertise {daemon.portal} auto', 'group check',
                 f'group export {export}', f'apply {document} --dry-run',
                 f'group import --force {export}', 'group import --withdraw', 'volume delete v'):
        done = daemon.sandbay('--json', *words_of(text), ok=None)
        try:
            json.loads(done.stdout)
        except ValueError:
            raise harness.Failed(f'{text}: no JSON: {done.stdout!r}') from None


def test_another_user_of_this_machine_is_refused(t):
    t.need('setpriv')
    if os.geteuid() != 0:
        raise harness.Skipped('only root can become another user')
    daemon = t.daemon()
    with open(daemon.log, encoding='utf-8') as stream:
        t.check('runs as root' in stream.read(), 'root without tokens is warned')
    # With a program that every user may run, wherever this tree is.
    ask = ('import http.client, sys; c = http.client.HTTPConnection(sys.argv[1]); '
           'c.request(sys.argv[2], "/api/v1/volumes", sys.argv[3] or None, '
           '{"Content-Type": "application/json"}); a = c.getresponse(); '
           'print(a.status, a.read().decode())')
    for method, body in (('GET', ''), ('POST', '{"name": "evil", "size": "1MiB"}')):
        done = t.run('setpriv', f'--reuid={STRANGER}', '--clear-groups', 'python3', '-c', ask,
                     daemon.management, method, body, cwd='/')
        t.check(done.stdout.startswith('403 ') and f'uid {STRANGER}' in done.stdout, done.stdout)
    names = [volume['name'] for volume in daemon.sandbay_json('volume', 'list')['volumes']]
    t.check(names == ['disk'], str(names))


def test_a_token_is_not_sent_to_another_person(t):
    t.need('setpriv', 'python3')
    if os.geteuid() != 0:
        raise harness.Skipped('only root can become another user')
    port = harness.PORTS.take()
    t.start('setpriv', f'--reuid={STRANGER}', '--clear-groups', 'python3', '-m', 'http.server',
            '--bind', '127.0.0.1', '--directory', '/', port, log='impostor.log')
    command = (t.program('sandbay'), '--management', f'http://127.0.0.1:{port}', 'group', 'show')

    def answered():
        done = t.run(*command, ok=False)
        return done if done.returncode != UNREACHABLE or 'no daemon' not in done.stdout else None
    t.until(answered, 'the impostor listens')
    done = t.run(*command, ok=False, env=dict(os.environ, SANDBAY_TOKEN='x' * 20))
    t.check(done.returncode == FORBIDDEN and f'uid {STRANGER}' in done.stdout, done.stdout)
    with open(t.path('impostor.log'), encoding='utf-8') as stream:
        t.check(stream.read().count('GET') == 1, 'only the request without the token arrived')


def test_bash_completes(t):
    t.need('bash')
    script = t.run(t.program('sandbay'), 'completion', 'bash').stdout
    path = t.path('completion')
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(script)
    done = t.run('bash', '-c', f'source {path}; COMP_WORDS=(sandbay volume cr); COMP_CWORD=2; '
                 '_sandbay; echo "${COMPREPLY[*]}"')
    t.check(done.stdout.strip() == 'create', done.stdout)
