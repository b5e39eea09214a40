"""`sandbay run -- COMMAND`: a daemon of its own around a command, and nothing left afterwards."""
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import harness

REFUSED = 125


class Runs:
    """`sandbay run` in a folder of the test's own, whose processes are known by a mark."""

    def __init__(self, t):
        self.t = t
        self.mark = uuid.uuid4().hex
        self.folder = t.path('tmp')
        os.mkdir(self.folder)
        self.environment = dict(os.environ, TMPDIR=self.folder, SANDBAY_TEST_MARK=self.mark)
        t.at_end(self.kill_all)

    def start(self, *words, folder=None):
        environment = dict(self.environment, TMPDIR=folder or self.folder)
        return subprocess.Popen([self.t.program('sandbay'), 'run', *words], env=environment,
                                text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, *words, **options):
        """The exit code, standard output and standard error."""
        process = self.start(*words, **options)
        output, error = process.communicate(timeout=60)
        return process.returncode, output, error

    def processes(self):
        """The ids of what is left, by name."""
        found = {}
        for number in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{number}/environ', 'rb') as stream:
                    if self.mark.encode() not in stream.read():
                        continue
                with open(f'/proc/{number}/comm', encoding='utf-8') as stream:
                    found.setdefault(stream.read().strip(), []).append(int(number))
            except OSError:
                pass
        return found

    def started(self, name):
        return self.t.until(lambda: self.processes().get(name), f'{name} runs')

    def expect_nothing_left(self):
        self.t.until(lambda: not self.processes() and not os.listdir(self.folder),
                     f'all gone, but {self.processes()} and {os.listdir(self.folder)}')

    def kill_all(self):
        for ids in self.processes().values():
            for number in ids:
                os.kill(number, signal.SIGKILL)


def test_a_command_finds_the_volumes_in_its_environment(t):
    runs = Runs(t)
    code, output, error = runs.run('--volume', '64MiB', '--volume', 'my.log=32MiB', '--', 'env')
    values = dict(line.split('=', 1) for line in output.splitlines() if '=' in line)
    t.check(code == 0 and not error, f'ended with {code}: {error}')
    portal = values['SANDBAY_PORTAL']
    for name, volume in (('URL', 'disk'), ('URL_DISK', 'disk'), ('URL_MY_LOG', 'my.log')):
        wanted = f'iscsi://{portal}/{harness.NAME_PREFIX}{volume}/0'
        t.check(values[f'SANDBAY_{name}'] == wanted, f'{values}, without {wanted}')
    t.check(values['SANDBAY_TARGET'] == harness.NAME_PREFIX + 'disk', str(values))
    t.check(values['SANDBAY_API'] == values['SANDBAY_MANAGEMENT'], str(values))
    t.check(len(values['SANDBAY_TOKEN']) == 64, str(values))
    code, output, error = runs.run('--volume', 'disk2=1MiB', '--volume', '1MiB', '--volume', '1MiB',
                                   '--', 'sh', '-c',
                                   'env; qemu-io -f raw -c "write 0 1M" $SANDBAY_URL')
    t.check(code == 0 and 'SANDBAY_URL_DISK3=' in output, f'ended with {code}: {output}{error}')
    t.check('ATTENTION' not in error, error)
    runs.expect_nothing_left()


def test_a_command_gets_its_words_and_its_exit_code_counts(t):
    runs = Runs(t)
    words = ['--json', 'run', '--', '[a,b]', '', 'x y', '-h']
    program = 'import sys; print(sys.argv[1:]); sys.exit(7)'
    code, output, error = runs.run('--', sys.executable, '-c', program, *words)
    t.check((code, output.strip()) == (7, str(words)), f'{code}, {output}')
    t.check('the end of the daemon\'s log' in error and 'ended' in error, error)
    for command, wanted in (('kill -SEGV $$', 139), ('kill -KILL $$', 137), ('exit 0', 0)):
        code, _, _ = runs.run('--', 'sh', '-c', command)
        t.check(code == wanted, f'{command}: ended with {code}')
    runs.expect_nothing_left()


def test_a_suite_of_pytest_runs_in_it(t):
    t.need('pytest', 'qemu-io')
    runs = Runs(t)
    suite = os.path.join(harness.TOP, 'tests/e2e/sample_suite.py')
    code, output, error = runs.run('--volume', '64MiB', '--', 'pytest', '-q', '-p',
                                   'no:cacheprovider', suite)
    t.check(code == 0 and '2 passed' in output, f'ended with {code}: {output}{error}')
    runs.expect_nothing_left()


def test_the_command_line_inside_manages_the_daemon(t):
    runs = Runs(t)
    program = t.program('sandbay')
    script = (f'{program} snapshot create disk before && {program} volume create more --size 8MiB '
              f'--initiator "*" && {program} volume list')
    code, output, error = runs.run('--volume', '64MiB', '--', 'sh', '-ec', script)
    t.check(code == 0 and 'more' in output, f'ended with {code}: {output}{error}')
    script = f'{program} fault add at=drive:d0 op=write count=1 do=lse && {program} fault list'
    code, output, error = runs.run('--volume', '64MiB', '--', 'sh', '-ec', script)
    t.check(code == 0 and 'do=lse' in output, f'ended with {code}: {output}{error}')


def test_nothing_is_left_when_any_of_its_processes_is_killed(t):
    runs = Runs(t)
    # One of them leaves the process group, as a daemon does.
    script = 'setsid sleep 1000 & sleep 1000 & exec tail -f /dev/null'

    def killed(choose, wanted):
        process = runs.start('--', 'sh', '-c', script)
        runs.started('tail')
        runs.started('sleep')
        for number in choose(process):
            os.kill(number, signal.SIGKILL)
        process.communicate(timeout=60)
        t.check(process.returncode == wanted, f'ended with {process.returncode}, not {wanted}')

    def worker(process):
        return [n for n in runs.processes()['sandbay'] if n != process.pid]

    for choose, wanted in ((lambda _: runs.processes()['tail'], 137),
                           (lambda process: [process.pid], -9), (worker, 137)):
        killed(choose, wanted)
        runs.expect_nothing_left()
    script = ('until test -s "$0"; do sleep 0.05; done; '
              'while kill -0 $(cat "$0"); do sleep 0.05; done')
    process = runs.start('--', 'sh', '-c', script, t.path('id'))
    number = runs.started('sandbayd')[0]
    with open(t.path('id'), 'w', encoding='utf-8') as stream:
        stream.write(str(number))
    time.sleep(0.2)
    os.kill(number, signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    t.check(process.returncode in (REFUSED, 1) and 'sandbayd ended with 137' in error,
            f'ended with {process.returncode}: {error}')
    runs.expect_nothing_left()


def test_what_is_left_when_all_are_killed_at_once_goes_with_the_next_run(t):
    runs = Runs(t)
    process = runs.start('--', 'sleep', '1000')
    runs.started('sleep')
    for number in runs.processes()['sandbay']:
        os.kill(number, signal.SIGKILL)
    process.communicate(timeout=60)
    t.until(lambda: not runs.processes(), 'the daemon and the command end')
    t.check(os.listdir(runs.folder), 'all were killed, and yet the folder is gone')
    # A folder in use is another's.
    other = runs.start('--', 'sleep', '1000')
    runs.started('sleep')
    code, _, error = runs.run('--', 'true')
    t.check(code == 0, f'ended with {code}: {error}')
    t.check(len(os.listdir(runs.folder)) == 1, f'{os.listdir(runs.folder)}')
    other.terminate()
    other.communicate(timeout=60)
    t.check(other.returncode == 143, f'ended with {other.returncode}')
    runs.expect_nothing_left()


def test_a_signal_at_any_moment_leaves_nothing(t):
    runs = Runs(t)
    moments = 36
    for i in range(moments):
        process = runs.start('--', 'sleep', '0.1')
        time.sleep(0.2 * i / moments)
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[i % 3]
        process.send_signal(number)
        process.communicate(timeout=60)
        # Before it has forked, the signal ends it; when the command has ended, it ends the daemon.
        wanted = (-number, 128 + number, 0, REFUSED)
        t.check(process.returncode in wanted, f'moment {i}: ended with {process.returncode}')
    # A kill may come before there are two processes; the folder is removed by the next run.
    t.until(lambda: not runs.processes(), 'all processes end')
    code, _, error = runs.run('--', 'true')
    t.check(code == 0, error)
    runs.expect_nothing_left()


def test_many_at_once_do_not_disturb_each_other(t):
    t.need('iscsi-inq')
    runs = Runs(t)
    script = 'echo $SANDBAY_PORTAL $SANDBAY_API; sleep 0.5; iscsi-inq $SANDBAY_URL >/dev/null'
    processes = [runs.start('--', 'sh', '-c', script) for _ in range(24)]
    outputs = [process.communicate(timeout=60) for process in processes]
    for process, (_, error) in zip(processes, outputs):
        t.check(process.returncode == 0, f'ended with {process.returncode}: {error}')
    ports = [word.rsplit(':', 1)[1] for output, _ in outputs for word in output.split()]
    t.check(len(set(ports)) == 48, f'{sorted(ports)}')
    runs.expect_nothing_left()


def test_a_terminal_and_a_parent_have_their_say(t):
    t.need('timeout')
    runs = Runs(t)
    # A command that has left the process group gets what a terminal sends to that group, once.
    program = ('import os, signal, sys, time; came = []; '
               'signal.signal(signal.SIGINT, lambda *_: came.append(1)); '
               'print("up", flush=True); time.sleep(0.5); time.sleep(0.5); '
               'print(len(came)); sys.exit(3)')
    for leaves in ([], ['timeout', '60']):
        done = t.run(sys.executable, os.path.join(harness.TOP, 'tests/e2e/on_a_terminal.py'),
                     t.program('sandbay'), 'run', '--', *leaves, sys.executable, '-c', program,
                     ok=None, env=runs.environment)
        t.check('1' in done.stdout.split() and done.stdout.endswith('ended with 3\n'), done.stdout)
        runs.expect_nothing_left()
    # Sent to the whole process group by a process, it comes once too.
    process = subprocess.Popen([t.program('sandbay'), 'run', '--', sys.executable, '-c', program],
                               env=runs.environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    output, error = process.communicate(timeout=60)
    t.check((process.returncode, output) == (3, '1\n'), f'{process.returncode}: {output}{error}')
    # pkill finds both processes.
    process = runs.start('--', 'sleep', '1000')
    runs.started('sleep')
    for number in runs.processes()['sandbay']:
        os.kill(number, signal.SIGTERM)
    process.communicate(timeout=60)
    t.check(process.returncode == 143, f'ended with {process.returncode}')
    # A parent that ignores how children end, as some servers do, still gets an end.
    code = subprocess.run(['perl', '-e', '$SIG{CHLD} = "IGNORE"; exec @ARGV', t.program('sandbay'),
                           'run', '--', 'sh', '-c', 'exit 5'], env=runs.environment, timeout=60,
                          check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t.check(code.returncode == 5, f'ended with {code.returncode}')
    # Nobody reads what it says.
    reading, writing = os.pipe()
    os.close(reading)
    code = subprocess.run([t.program('sandbay'), 'run', '--', 'sh', '-c', 'exit 5'], check=False,
                          env=runs.environment, timeout=60, stderr=writing)
    os.close(writing)
    t.check(code.returncode == 5, f'ended with {code.returncode}')
    runs.expect_nothing_left()


def test_a_run_within_a_run_has_an_array_of_its_own(t):
    runs = Runs(t)
    inner = 'sandbay run --volume inner=8MiB -- env; sandbay volume list'
    path = f'{os.path.dirname(t.program("sandbay"))}:{os.environ["PATH"]}'
    runs.environment.update(PATH=path, SANDBAY_TOKEN_FILE='/nonexistent', SANDBAY_URL_OLD='x')
    del runs.environment['SANDBAY_TOKEN_FILE']
    code, output, error = runs.run('--volume', 'outer=8MiB', '--', 'sh', '-ec', inner)
    t.check(code == 0 and 'SANDBAY_URL_INNER=' in output, f'ended with {code}: {output}{error}')
    t.check('SANDBAY_URL_OUTER=' not in output and 'SANDBAY_URL_OLD=' not in output, output)
    t.check('outer' in output.splitlines()[-1], output)
    runs.expect_nothing_left()


def test_what_is_kept_starts_again(t):
    t.need('qemu-io')
    runs = Runs(t)
    script = 'qemu-io -f raw -c "write -P 7 1M 1M" $SANDBAY_URL; exec sleep $0'
    code, _, error = runs.run('--keep', '--volume', '64MiB', '--', 'sh', '-c', script, '0')
    t.check(code == 0, error)
    folder = os.path.join(runs.folder, os.listdir(runs.folder)[0])
    t.check(f'kept in {folder}; sandbayd --config {folder}/sandbayd.toml --state {folder}/state' in
            error, error)
    code, output, error = runs.run('--config', f'{folder}/sandbayd.toml', '--', 'sh', '-c', 'true')
    t.check(code == 0, f'{output}{error}')
    daemon = harness.Daemon(t, [], config=f'{folder}/sandbayd.toml', start=False)
    shutil.rmtree(daemon.state)
    shutil.copytree(f'{folder}/state', daemon.state)
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 1M 1M', daemon.url())
    # Kernel and keeper both see to the end of a daemon whose worker has died; it ends in order.
    shutil.rmtree(folder)
    process = runs.start('--keep', '--volume', '64MiB', '--', 'sh', '-c', script, '1000')
    runs.started('sleep')
    for number in runs.processes()['sandbay']:
        if number != process.pid:
            os.kill(number, signal.SIGKILL)
    process.communicate(timeout=60)
    folder = os.path.join(runs.folder, os.listdir(runs.folder)[0])
    with open(f'{folder}/sandbayd.log', encoding='utf-8') as stream:
        log = stream.read()
    t.check('SIGTERM: shutting down' in log and log.splitlines()[-1].endswith(' ended'), log)


def test_faults_strike_and_are_told(t):
    t.need('qemu-io')
    runs = Runs(t)
    with open(t.path('rules'), 'w', encoding='utf-8') as stream:
        stream.write('# The first read of the drive under the pool.\n\n'
                     'at=drive:d0 op=read count=1 do=lse\n')
    script = ('qemu-io -f raw -c "write -P 7 0 1M" -c flush $SANDBAY_URL && '
              'qemu-io -f raw -c "read -P 7 0 1M" $SANDBAY_URL')
    code, output, error = runs.run('--faults', t.path('rules'), '--', 'sh', '-c', script)
    t.check(code == 1 and 'SENSE KEY' in error, f'ended with {code}: {output}{error}')
    t.check('fault fired 1 times: rule id=r1 at=drive:d0' in error, error)
    with open(t.path('rules'), 'a', encoding='utf-8') as stream:
        stream.write('at=drive:d0 do=nonsense\n')
    code, output, error = runs.run('--faults', t.path('rules'), '--', 'true')
    t.check(code == REFUSED and f'{t.path("rules")}:4: do=nonsense' in error, error)
    runs.expect_nothing_left()


def test_an_array_comes_with_its_volumes_and_takes_more(t):
    t.need('iscsi-inq')
    runs = Runs(t)
    code, output, error = runs.run('--array', 'ibm-ds3500', '--volume', 'extra=64MiB', '--', 'sh',
                                   '-ec', 'iscsi-inq $SANDBAY_URL; iscsi-inq $SANDBAY_URL_VOLUME1')
    t.check(code == 0 and output.count('Product:') == 2, f'ended with {code}: {output}{error}')
    runs.expect_nothing_left()


def test_refusals_are_one_line_and_leave_nothing(t):
    runs = Runs(t)
    with harness.socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = f'127.0.0.1:{taken.getsockname()[1]}'
        for words, said in (
                (['--array', 'ibm-ds350', '--', 'true'], 'did you mean ibm-ds3500?'),
                (['--array', 'x', '--', 'true'], 'there are compellent-c10, custom, equallogic-'),
                (['--array', '', '--', 'true'], '--array: the value is empty'),
                (['--config', '', '--', 'true'], '--config: the value is empty'),
                (['--volume', '4096TiB', '--', 'true'], 'of memory that are left here'),
                (['--volume', 'a=b', '--', 'true'], '"b" is not a size'),
                (['--volume', '0B', '--', 'true'], 'write a size such as 64MiB'),
                (['--volume', 'a.b=1MiB', '--volume', 'a-b=1MiB', '--', 'true'],
                 'a.b and a-b are both SANDBAY_URL_A_B'),
                (['--volume', 'x/y=1GiB', '--', 'true'], '"x/y" is not a name'),
                (['--config', '/nonexistent', '--', 'true'], '/nonexistent: cannot be read'),
                (['--faults', '/nonexistent', '--', 'true'], '/nonexistent: cannot be read'),
                (['--portal', '127.0.0.1:x', '--', 'true'], '127.0.0.1:x: not an address'),
                (['--portal', port, '--', 'true'], 'address in use'),
                (['--bogus', '--', 'true'], '"--bogus" is not known here'),
                (['true'], 'true'), ([], 'a command is missing')):
            code, _, error = runs.run(*words)
            t.check(code == REFUSED and error.count('\n') == 1 and said in error,
                    f'{words}: ended with {code}: {error}')
    for words, wanted in (('/nonexistent', 127), ('/etc/passwd', 126)):
        code, _, error = runs.run('--', words)
        t.check(code == wanted and error.count('\n') == 1 and words in error, f'{code}: {error}')
    code, _, error = runs.run('--', 'true', folder='/nonexistent')
    t.check(code == REFUSED and error.count('\n') == 1 and 'TMPDIR' in error, f'{code}: {error}')
    runs.expect_nothing_left()
