"""Sets on file drives for end-to-end tests: their configuration, load that stays attached to them,
and how they are.
"""
import json
import os
import signal
import subprocess

from harness import Failed


def drives(names, size='48MiB', spares=(), **keys):
    """Sections [[drive]] with files under STATE/drives. `keys` go into each."""
    text = ''
    for name in [*names, *spares]:
        text += f'[[drive]]\nname = "{name}"\nfile = "drives/{name}.img"\nsize = "{size}"\n'
        text += 'spare = true\n' if name in spares else ''
        text += ''.join(f'{key} = {json.dumps(value)}\n' for key, value in keys.items())
    return text


def raid(name, level, names, **keys):
    text = f'[[raid]]\nname = "{name}"\nlevel = "{level}"\ndrives = {json.dumps(list(names))}\n'
    return text + ''.join(f'{key} = {json.dumps(value)}\n' for key, value in keys.items())


def faults(*rules, seed=1):
    return f'[faults]\nenabled = true\nseed = {seed}\nrules = {json.dumps(list(rules))}\n'


def the_set(daemon, name):
    return daemon.sandbay_json('raid', 'show', name)


def the_drive(daemon, name):
    return daemon.sandbay_json('drive', 'show', name)


def stale(daemon, name):
    return sum(role['stale_regions'] for role in the_set(daemon, name)['roles'])


def events(daemon):
    return daemon.sandbay_json('event', 'list')['events']


def kinds(daemon):
    return [event['kind'] for event in events(daemon)]


def whole(daemon, name):
    shown = the_set(daemon, name)
    return (shown['running'] and
            all(role['state'] == 'active' and not role['replacement'] and
                role['stale_regions'] == 0 for role in shown['roles']))


class Load:
    """`sandbay load` with verification, attached from the beginning to the end."""

    def __init__(self, t, url, *words):
        self._test = t
        self._process = subprocess.Popen(
            [t.program('sandbay'), 'load', '--json', '--write', '--verify', '--reconnect', '60s',
             '--duration', '10min', *words, url],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        t.at_end(self._process.kill)

    def running(self):
        return self._process.poll() is None

    def require_running(self, when):
        if not self.running():
            raise Failed(f'the load ended too early, {when}: {self._process.stdout.read()[-2000:]}')

    def end(self, seconds=120):
        """Ends it; all that it wrote is read once more. Its report."""
        if self.running():
            self._process.send_signal(signal.SIGINT)
        try:
            output = self._process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            raise Failed(f'the load still runs after {seconds} s')
        start, end = ('\n' + output).find('\n{'), output.rfind('}') + 1
        if start < 0 or end <= start:
            raise Failed(f'the load gave no report: {output[-2000:]}')
        return json.loads(output[start:end])

    def require_good(self):
        """Ends it. Its report; no request failed and all data were right."""
        report = self.end()
        self._test.check(
            self._process.returncode == 0 and report['errors'] == 0 and report['miscompares'] == 0,
            f'no error at the host, all data right: {report["errors"]} errors, '
            f'{report["first_error"]}; {report["miscompares"]} wrong, '
            f'{report["first_miscompare"]}')
        self._test.check(report['blocks_verified'] > 0, 'something was verified')
        return report


def image(t, name, megabytes, seed):
    """A file of pseudo-random data that is the same for the same seed."""
    path = t.path(name)
    command = ['openssl', 'enc', '-aes-128-ctr', '-nosalt', '-K', f'{seed:032x}', '-iv', '0' * 32,
               '-in', '/dev/zero']
    with open(path, 'wb') as out:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as made:
            left = megabytes << 20
            while left:
                data = made.stdout.read(min(left, 1 << 20))
                out.write(data)
                left -= len(data)
            made.kill()
    return path


def write(t, daemon, path, volume):
    t.run('qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', path, daemon.url(volume))


def require_same(t, daemon, path, volume, when):
    t.run('qemu-img', 'convert', '-f', 'raw', '-O', 'raw', daemon.url(volume), t.path('read'))
    wanted = os.path.getsize(path)
    done = t.run('cmp', '-n', wanted, path, t.path('read'), ok=None)
    t.check(done.returncode == 0, f'{when}: what is read is not what was written: {done.stdout}')


def write_and_read(t, url, value):
    """Whether a foreign host wrote and read a pattern, and what it said; never other data."""
    output = t.run('qemu-io', '-f', 'raw', '-c', f'write -P {value} 1M 512k', '-c',
                   f'read -P {value} 1M 512k', url, ok=None).stdout
    written = 'wrote 524288' in output
    t.check(not (written and 'verification failed' in output), output)
    return written and 'read 524288' in output, output
