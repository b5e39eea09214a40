"""Tokens, roles, TLS and the audit of the management interface, by the command line."""
import json
import os
import signal

import harness
from host import TEST_UNIT_READY, Host

REFUSED = 2


def private(t, name, text):
    path = t.path(name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'w', encoding='ascii') as stream:
        stream.write(text)
    return path


def certificate(t, name='daemon'):
    t.need('openssl')
    key, certificate_file = t.path(f'{name}.key'), t.path(f'{name}.pem')
    t.run('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
          '-nodes', '-keyout', key, '-out', certificate_file, '-days', '2', '-subj', '/CN=sandbay',
          '-addext', 'subjectAltName=IP:127.0.0.1')
    os.chmod(key, 0o600)
    return certificate_file, key


def token(t, name, role):
    path = private(t, f'{name}.token', f'{name}-0123456789abcdef\n')
    return path, f'[[management.token]]\nname = "{name}"\nrole = "{role}"\nfile = "{path}"\n'


def protected(t, *sections, tls=()):
    """A daemon whose section [management] has more in it."""
    daemon = t.daemon(start=False)
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    more = ''.join(f'{key} = "{value}"\n' for key, value in tls) + '\n'.join(sections)
    marker = f'listen = "{daemon.management}"\n'
    t.check(marker in text, text)
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text.replace(marker, marker + more))
    daemon.start()
    return daemon


def sandbay(t, url, *words, ok=True, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith('SANDBAY_')}
    return t.run(t.program('sandbay'), '--management', url, *words, ok=ok,
                 env={**clean, **environment})


def test_tokens_over_tls(t):
    reader, read = token(t, 'monitor', 'read')
    operator, operate = token(t, 'alice', 'operate')
    pem, key = certificate(t)
    stranger, _ = certificate(t, 'stranger')
    daemon = protected(t, read, operate, tls=(('certificate', pem), ('key', key)))
    with open(daemon.log, encoding='utf-8') as stream:
        t.check(f'management https://{daemon.management}' in stream.read(), 'the line says https')
    url = f'https://{daemon.management}'
    trusted = ('--ca-file', pem)
    done = sandbay(t, url, 'group', 'show', '--token-file', reader, ok=False)
    t.check('--ca-file' in done.stdout, done.stdout)
    done = sandbay(t, url, 'group', 'show', '--token-file', reader, '--ca-file', stranger, ok=False)
    t.check('not trusted' in done.stdout, done.stdout)
    done = sandbay(t, url, 'group', 'show', *trusted, ok=False)
    t.check('a token is demanded' in done.stdout, done.stdout)
    done = sandbay(t, url, 'group', 'show', *trusted, ok=False, SANDBAY_TOKEN='x' * 20)
    t.check("does not know the token" in done.stdout, done.stdout)
    sandbay(t, url, 'group', 'show', *trusted, '--token-file', reader)
    make = ('volume', 'create', 'v', '--size', '1MiB', '--memory', *trusted)
    done = sandbay(t, url, *make, '--token-file', reader, ok=False)
    t.check('"monitor" has the role read' in done.stdout, done.stdout)
    with open(operator, encoding='ascii') as stream:
        secret = stream.read().strip()
    sandbay(t, url, *make, SANDBAY_TOKEN=secret)
    listed = sandbay(t, url, 'audit', 'list', '--json', SANDBAY_TOKEN_FILE=reader,
                     SANDBAY_CA_FILE=pem).stdout
    changes = json.loads(listed)['changes']
    t.check([(c['caller'], c['status']) for c in changes] == [('monitor', 403), ('alice', 201)],
            listed)
    # Over a kill and a restart, and with nothing secret anywhere.
    t.until(lambda: kept(daemon), 'the audit is kept')
    daemon.kill()
    daemon.start()
    table = sandbay(t, url, 'audit', 'list', *trusted, '--token-file', reader).stdout
    t.check('alice' in table and 'POST /api/v1/volumes' in table, table)
    with open(daemon.log, encoding='utf-8') as stream:
        t.check(secret not in stream.read(), 'the log holds a token')
    os.chmod(reader, 0o644)
    done = sandbay(t, url, 'group', 'show', *trusted, '--token-file', reader, ok=False)
    t.check('chmod 600' in done.stdout, done.stdout)
    done = t.run(t.program('sandbayd'), '--check', *daemon.arguments, ok=False)
    t.check(done.returncode == REFUSED and 'chmod 600' in done.stdout, done.stdout)


def kept(daemon):
    """Whether a name that only the audit holds is in the metadata's files."""
    for folder, _, names in os.walk(os.path.join(daemon.state, 'metadata')):
        for name in names:
            with open(os.path.join(folder, name), 'rb') as stream:
                if b'"caller":"alice"' in stream.read():
                    return True
    return False


def test_management_for_other_machines_is_protected(t):
    daemon = t.daemon(start=False)
    port = harness.PORTS.take()
    everywhere = ('--management', f'0.0.0.0:{port}')
    done = t.run(t.program('sandbayd'), *daemon.arguments, *everywhere, ok=False)
    t.check(done.returncode == REFUSED and 'asks for no password' in done.stdout and
            len(done.stdout.strip().splitlines()) == 1, done.stdout)
    t.run(t.program('sandbayd'), *daemon.arguments, '--check')


def test_tokens_and_certificate_are_renewed_by_sighup(t):
    """What the file says now counts from the next request on; no session notices, and a mistake
    changes nothing."""
    reader, read = token(t, 'monitor', 'read')
    pem, key = certificate(t)
    daemon = protected(t, read, tls=(('certificate', pem), ('key', key)))
    url = f'https://{daemon.management}'
    host = Host(t, daemon, 'disk')
    host.attentions()

    def logged():
        with open(daemon.log, encoding='utf-8') as stream:
            return stream.read().count('SIGHUP')

    def reload(number):
        daemon.process.send_signal(signal.SIGHUP)
        t.until(lambda: logged() == number, f'reload {number} is told')

    show = ('group', 'show', '--ca-file', pem)
    sandbay(t, url, *show, '--token-file', reader)
    other, more = token(t, 'alice', 'operate')
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text.replace(read, read + more))
    with open(reader, 'w', encoding='ascii') as stream:
        stream.write('another-0123456789abcdef\n')
    sandbay(t, url, *show, ok=False, SANDBAY_TOKEN='another-0123456789abcdef')
    second, second_key = certificate(t, 'second')
    os.replace(second, pem)
    os.replace(second_key, key)
    sandbay(t, url, *show, '--token-file', other, ok=False)
    reload(1)
    sandbay(t, url, *show, '--token-file', reader)
    sandbay(t, url, *show, '--token-file', other)
    done = sandbay(t, url, *show, ok=False, SANDBAY_TOKEN='monitor-0123456789abcdef')
    t.check("does not know the token" in done.stdout, done.stdout)
    os.chmod(other, 0o644)
    reload(2)
    with open(daemon.log, encoding='utf-8') as stream:
        t.check('nothing is taken over' in stream.read(), 'the mistake is told')
    os.chmod(other, 0o600)
    sandbay(t, url, *show, '--token-file', other)
    host.good(TEST_UNIT_READY)
    t.check(daemon.terminate() == 0, 'an orderly end')
