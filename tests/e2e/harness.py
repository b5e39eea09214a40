"""What every end-to-end test stands on: a daemon of its own, ports of its own, bounded commands.

A test is a function `test_*(t)` with a Test. Its daemons, processes and mounts are undone when it
ends, whatever happened, in the reverse order; processes are ended by their id. Ports come from
$SANDBAY_E2E_PORTS (FIRST-LAST).
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
NAME_PREFIX = 'iqn.2026-11.org.sandbay:'
READY_SECONDS = 60
STOP_SECONDS = 60
COMMAND_SECONDS = 120


class Failed(Exception):
    """The product did something else than the test demands."""


class Skipped(Exception):
    """This machine does not allow the test; says why."""


class Ports:
    """Hands out ports of loopback that nobody listens on, each once."""

    def __init__(self):
        first, last = os.environ.get('SANDBAY_E2E_PORTS', '23000-23999').split('-')
        self._ports = iter(range(int(first), int(last) + 1))
        self._range = (int(first), int(last))
        self._lock = threading.Lock()

    def take(self):
        with self._lock:
            for _ in range(2):
                for port in self._ports:
                    if self._free(port):
                        return port
                self._ports = iter(range(self._range[0], self._range[1] + 1))
        raise Failed(f'no free port in {self._range}')

    def take_row(self, count):
        """The first of a row of `count` ports."""
        row = [self.take()]
        while len(row) < count:
            port = self.take()
            row = [*row, port] if port == row[-1] + 1 else [port]
        return row[0]

    @staticmethod
    def _free(port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(('127.0.0.1', port))
                return True
            except OSError:
                return False


PORTS = Ports()
# Deletes the folders of tests that have ended, for on a busy disk that takes seconds. A test waits
# when more than MAX_REMOVALS of them are left.
REMOVER = concurrent.futures.ThreadPoolExecutor(1)
REMOVALS = collections.deque()
MAX_REMOVALS = 16


class Test:
    def __init__(self, name, build):
        self.name = name
        self.build = os.path.abspath(build)
        self.directory = tempfile.mkdtemp(prefix='sandbay-e2e-')
        self.lines = []
        self._undo = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._undo.close()
        if kind is None or kind is Skipped:
            REMOVALS.append(REMOVER.submit(shutil.rmtree, self.directory, ignore_errors=True))
            if len(REMOVALS) > MAX_REMOVALS:
                REMOVALS.popleft().result()

    def say(self, text):
        self.lines.append(text)

    def path(self, name):
        return os.path.join(self.directory, name)

    def at_end(self, function, *arguments):
        self._undo.callback(function, *arguments)

    def program(self, name):
        path = os.path.join(self.build, name)
        if not os.path.isfile(path):
            raise Failed(f'{name} is not built in {self.build}')
        return path

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program):
                raise Skipped(f'{program} is not installed')

    def check(self, condition, what):
        if not condition:
            raise Failed(what)

    def run(self, *command, ok=True, seconds=COMMAND_SECONDS, **options):
        """The finished process. `ok`: True, it must end with 0; False, with another code; None."""
        options.setdefault('stdin', subprocess.DEVNULL)
        if 'input' in options:
            del options['stdin']
        words = [str(word) for word in command]
        try:
            done = subprocess.run(words, text=True, errors='replace', timeout=seconds,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b''
            text = output if isinstance(output, str) else output.decode('utf-8', 'replace')
            raise Failed(f'{" ".join(words)}: still running after {seconds} s\n{text[-2000:]}')
        if ok is not None and (done.returncode == 0) != ok:
            raise Failed(f'{" ".join(words)}: ended with {done.returncode}\n{done.stdout[-3000:]}')
        return done

    def start(self, *command, log=None, **options):
        """A process in the background, ended at the test's end."""
        output = open(self.path(log or f'{os.path.basename(command[0])}.log'), 'ab')
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, **options)
        output.close()
        self.at_end(end_process, process)
        return process

    def until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise Failed(f'{what}: not within {seconds} s')

    def daemon(self, volumes=None, **options):
        return Daemon(self, volumes or [{'name': 'disk', 'size': '64MiB'}], **options)


def end_process(process, seconds=10):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_process(process):
    if process.poll() is None:
        process.kill()
        process.wait()


def toml_value(value):
    return json.dumps(value)


def configuration(name, portals, management, state, volumes, extra):
    """A configuration file's text. A volume without an access list admits every initiator."""
    lines = ['[group]', f'name = "{name}"', f'state = "{state}"', '', '[management]',
             f'listen = "{management}"', '']
    for tag, portal in enumerate(portals, 1):
        lines += ['[[portal]]', f'listen = "{portal}"', f'group_tag = {tag}', '']
    for volume in volumes:
        rows = volume.get('access', [{'initiator': '*'}])
        lines += ['[[volume]]']
        lines += [f'{key} = {toml_value(v)}' for key, v in volume.items() if key != 'access']
        for row in rows:
            lines += ['  [[volume.access]]'] + [f'  {k} = {toml_value(v)}' for k, v in row.items()]
        lines += ['']
    return '\n'.join(lines) + extra


class Daemon:
    """A sandbayd of the test's own. `config`: a file instead of one made from `volumes`."""

    def __init__(self, test, volumes, portals=('127.0.0.1',), extra='', config=None, reactors=0,
                 wrapper=(), start=True):
        self.test = test
        self.number = 1 + sum(1 for name in os.listdir(test.directory) if name.startswith('state'))
        self.state = test.path(f'state{self.number}')
        os.mkdir(self.state)
        self.portals = [f'[{a}]:{PORTS.take()}' if ':' in a else f'{a}:{PORTS.take()}'
                        for a in portals]
        self.portal = self.portals[0]
        self.management = f'127.0.0.1:{PORTS.take()}'
        self.log = test.path(f'sandbayd{self.number}.log')
        self.reactors, self.wrapper = reactors, list(wrapper)
        self.process = None
        if config:
            self.arguments = ['--config', config, '--management', self.management,
                              '--state', self.state]
            for portal in self.portals:
                self.arguments += ['--portal', portal]
        else:
            path = test.path(f'config{self.number}.toml')
            with open(path, 'w', encoding='utf-8') as stream:
                stream.write(configuration('e2e', self.portals, self.management, self.state,
                                           volumes, extra))
            self.arguments = ['--config', path]
        if start:
            self.start()

    def start(self, seconds=READY_SECONDS):
        command = self.wrapper + [self.test.program('sandbayd')] + self.arguments
        if self.reactors:
            command += ['--reactors', str(self.reactors)]
        with open(self.log, 'ab') as output:
            mark = output.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, cwd=TOP)
        # A test that wants an orderly end asks for one, and checks it.
        self.test.at_end(kill_process, self.process)

        def ready():
            with open(self.log, encoding='utf-8', errors='replace') as stream:
                stream.seek(mark)
                text = stream.read()
            if self.process.poll() is not None:
                raise Failed(f'sandbayd ended with {self.process.returncode}:\n{text[-2000:]}')
            return text.startswith('ready: ') or '\nready: ' in text
        self.test.until(ready, 'sandbayd says that it is ready', seconds)

    def kill(self):
        kill_process(self.process)

    def terminate(self, seconds=STOP_SECONDS):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f'sandbayd still runs {seconds} s after SIGTERM')

    def alive(self):
        return self.process.poll() is None

    def require_alive(self):
        if not self.alive():
            with open(self.log, encoding='utf-8', errors='replace') as stream:
                text = stream.read()
            raise Failed(f'sandbayd ended with {self.process.returncode}:\n{text[-3000:]}')

    def url(self, volume='disk', lun=0, user='', portal=None):
        at = f'{user}@' if user else ''
        return f'iscsi://{at}{portal or self.portal}/{NAME_PREFIX}{volume}/{lun}'

    def address(self):
        host, _, port = self.portal.rpartition(':')
        return host.strip('[]'), int(port)

    def resident_bytes(self):
        with open(f'/proc/{self.process.pid}/statm', encoding='ascii') as stream:
            return int(stream.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')

    def stored_bytes(self):
        """What the files of the state directory take on their filesystem."""
        folders = os.walk(self.state)
        return sum(os.stat(os.path.join(folder, name)).st_blocks * 512
                   for folder, _, names in folders for name in names)

    def cpu_seconds(self):
        with open(f'/proc/{self.process.pid}/stat', encoding='ascii') as stream:
            fields = stream.read().rpartition(')')[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def sandbay(self, *words, ok=True, **options):
        """The command line against this daemon."""
        return self.test.run(self.test.program('sandbay'), '--management',
                             f'http://{self.management}', *words, ok=ok, **options)

    def sandbay_json(self, *words):
        return json.loads(self.sandbay('--json', *words).stdout)

    def load(self, *words, ok=True, seconds=180):
        """The report of `sandbay load` as JSON."""
        done = self.test.run(self.test.program('sandbay'), 'load', '--json', *words, ok=ok,
                             seconds=seconds)
        start = done.stdout.find('{')
        if start < 0:
            raise Failed(f'sandbay load printed no JSON:\n{done.stdout[-2000:]}')
        return json.loads(done.stdout[start:done.stdout.rindex('}') + 1])
