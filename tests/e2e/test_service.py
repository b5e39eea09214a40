"""The daemon as a service: whatever becomes of the things around it (the reader of its log, the
filesystems that it looks at, the locks and ports that it wants), it serves what it can and ends
on SIGTERM.
"""
import collections
import concurrent.futures
import fcntl
import glob
import http.client
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time

import harness
import host
from raid_lab import drives, raid

MIB = 1 << 20
SYNCHRONIZE_CACHE = bytes([0x35]) + bytes(9)
NOT_NOW, WRONG_FILE = 3, 2


def ask(daemon, method, path, seconds=60):
    """The status of an answer over HTTP."""
    address, _, port = daemon.management.rpartition(':')
    connection = http.client.HTTPConnection(address, int(port), timeout=seconds)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def start_with_log(t, daemon, log):
    """Starts the daemon with standard error on the open file `log`; it is ready on return."""
    with open(daemon.log, 'ab') as output:
        daemon.process = subprocess.Popen([t.program('sandbayd')] + daemon.arguments,
                                          stdin=subprocess.DEVNULL, stdout=output, stderr=log,
                                          cwd=harness.TOP)
    t.at_end(harness.end_process, daemon.process)

    def ready():
        daemon.require_alive()
        with open(daemon.log, encoding='utf-8') as stream:
            return stream.read().startswith('ready: ')
    t.until(ready, 'sandbayd says that it is ready')


def fill_pipe(descriptor):
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for size in (4096, 1):
        try:
            while True:
                os.write(descriptor, b'.' * size)
        except BlockingIOError:
            pass
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def test_log_that_nobody_reads_stops_neither_io_nor_the_end(t):
    """G-S4: with a full pipe on standard error logins, reads, management and SIGTERM go on."""
    daemon = t.daemon(start=False)
    reader, writer = os.pipe()
    t.at_end(os.close, reader)
    t.at_end(os.close, writer)
    fill_pipe(writer)
    start_with_log(t, daemon, writer)
    for isid in range(1, 40):  # Each login and each end of a session is a line.
        peer = host.Host(t, daemon, isid=isid)
        peer.attentions()
        t.check(peer.read(0, 8).good, f'read of login {isid}')
        peer.close()
    t.check(daemon.sandbay_json('group', 'show')['volumes'] == 1, 'management answers')
    t.check(daemon.terminate(20) == 0, 'it ends with 0 on SIGTERM')


def allow_files(t, daemon):
    """Lets management make volumes on files in the test's folder."""
    path = daemon.arguments[1]
    with open(path, encoding='utf-8') as stream:
        text = stream.read()
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text.replace('[management]\n',
                                  f'[management]\nvolume_paths = ["{t.directory}"]\n', 1))


# Filesystems that hang --------------------------------------------------------------------------

class HungFilesystem:
    """Files on FUSE; stop() makes its server as silent as a dead NFS server."""

    def __init__(self, t, names, size):
        t.need('qemu-storage-daemon', 'fusermount3')
        if not os.access('/dev/fuse', os.R_OK | os.W_OK):
            raise harness.Skipped('/dev/fuse cannot be used')
        command = ['qemu-storage-daemon']
        self.paths = {}
        for name in names:
            image, mount = t.path(f'{name}.backing'), t.path(f'{name}.fuse')
            with open(image, 'wb') as stream:
                stream.truncate(size)
            open(mount, 'wb').close()
            command += ['--blockdev', f'driver=file,filename={image},node-name={name}',
                        '--export', f'type=fuse,id=e{name},node-name={name},mountpoint={mount},'
                                    'writable=on,growable=on']
            self.paths[name] = mount
        self._server = t.start(*command)
        for mount in self.paths.values():
            t.at_end(self._unmount, mount)
        t.at_end(self.go_on)
        t.until(lambda: all(os.stat(path).st_size == size for path in self.paths.values()),
                'the files are mounted')

    def _unmount(self, mount):
        subprocess.run(['fusermount3', '-u', '-z', mount], check=False, capture_output=True)

    def stop(self):
        self._server.send_signal(signal.SIGSTOP)

    def go_on(self):
        if self._server.poll() is None:
            self._server.send_signal(signal.SIGCONT)


def test_hung_filesystem_of_one_drive_stops_no_other(t):
    """G-S3, I-5: while the filesystem under one drive hangs, other sets serve reads, writes and
    flushes, hosts log in, and management answers; also while a request to that drive and an open
    of another file there hang.
    """
    hung = HungFilesystem(t, ['far', 'image'], 96 * MIB)
    far = f'[[drive]]\nname = "far"\nfile = "{hung.paths["far"]}"\nsize = "96MiB"\n'
    sections = drives(['near'], '96MiB') + far + raid('r', 'jbod', ['near']) + \
        raid('other', 'jbod', ['far'])
    daemon = t.daemon(extra=sections, reactors=1, start=False)
    allow_files(t, daemon)
    daemon.start()
    for name, where in (('a', 'r'), ('b', 'other')):
        daemon.sandbay('volume', 'create', name, '--raid', where, '--size', '8MiB', '--initiator',
                       '*')
    hosts = {name: host.Host(t, daemon, volume=name, isid=9) for name in ('disk', 'a', 'b')}
    for each in hosts.values():
        each.attentions()
        t.check(each.write(0, b'\x21' * 4096).good, 'a write before')
    hung.stop()
    create = subprocess.Popen(
        [t.program('sandbay'), '--management', f'http://{daemon.management}', 'volume', 'create',
         'x', '--file', hung.paths['image']], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t.at_end(harness.end_process, create)
    hosts['b'].start(host.read_10(64, 8), 8 * host.BLOCK, read=True)
    for number in range(4):
        time.sleep(0.8)  # The drives are looked at every second.
        for name in ('disk', 'a'):
            t.check(hosts[name].write(8, bytes([number]) * 4096).good, f'{name}: a write')
            t.check(hosts[name].read(8, 8).data == bytes([number]) * 4096, f'{name}: a read')
            t.check(hosts[name].command(SYNCHRONIZE_CACHE).good, f'{name}: a flush')
        host.Host(t, daemon, volume='a', isid=20 + number).attentions()
        daemon.sandbay('drive', 'list', seconds=20)
    daemon.process.send_signal(signal.SIGTERM)

    def is_taken():
        with open(daemon.log, encoding='utf-8', errors='replace') as stream:
            return 'SIGTERM: shutting down' in stream.read()
    t.until(is_taken, 'SIGTERM is taken')
    hung.go_on()
    t.check(daemon.process.wait(harness.STOP_SECONDS) in (0, 1), 'it ends')


# System calls -----------------------------------------------------------------------------------

# Calls that a reactor may make while it serves. None of these waits for storage, for a
# reader or for a name server.
ALLOWED = {
    'write': 'waking another reactor (eventfd)', 'read': 'of a signal',
    'futex': 'short locks shared with other threads',
    'clock_gettime': 'where the kernel has no other way',
    'close': 'of sockets and of local files',
    'flock': 'giving a lock back',
    'socket': 'not blocking', 'bind': 'not blocking', 'listen': 'not blocking',
    'setsockopt': 'not blocking', 'getsockopt': 'not blocking', 'getsockname': 'not blocking',
    'getpeername': 'not blocking', 'shutdown': 'not blocking', 'sendto': 'not blocking',
    'signalfd4': 'signals', 'rt_sigprocmask': 'signals', 'rt_sigaction': 'signals',
    'rt_sigreturn': 'the watch on turns', 'tgkill': 'the watch on turns', 'restart_syscall': '',
    'mmap': 'memory', 'munmap': 'memory', 'madvise': 'memory', 'mprotect': 'memory',
    'brk': 'memory', 'mremap': 'memory',
    'clone': 'starting a thread', 'clone3': 'starting a thread', 'set_robust_list': '',
    'pipe2': 'UndefinedBehaviorSanitizer',
    'sched_yield': '', 'getpid': '', 'gettid': '', 'getrandom': '',
}
ALLOWED_OF_ENGINE = {
    'io_uring': {
        'io_uring_enter': 'all I/O, and sleeping',
        'io_uring_register': 'limits of its rings',
    },
    'epoll': {
        'epoll_wait': 'sleeping', 'epoll_pwait': 'sleeping', 'epoll_pwait2': 'sleeping',
        'epoll_ctl': 'not blocking', 'fcntl': 'not blocking', 'poll': 'of a signal, at once',
        'recvmsg': 'not waiting', 'sendmsg': 'not waiting',
        'accept4': 'of sockets that do not wait', 'connect': 'of sockets that do not wait',
        'preadv2': 'what the page cache has', 'pwritev2': 'what the page cache takes',
    },
}
# What a call's line in the trace shows when it cannot wait.
MUST_SHOW = {'write': '= 8', 'read': '= 128', 'poll': ', 1, 0', 'recvmsg': 'MSG_DONTWAIT',
             'sendmsg': 'MSG_DONTWAIT', 'preadv2': 'RWF_NOWAIT', 'pwritev2': 'RWF_NOWAIT'}


def reactor_threads(daemon):
    threads = [str(daemon.process.pid)]
    for path in glob.glob(f'/proc/{daemon.process.pid}/task/*/comm'):
        with open(path, encoding='ascii') as stream:
            if stream.read().startswith('reactor-'):
                threads.append(path.split('/')[-2])
    return threads


def work(t, daemon):
    """Something of everything."""
    daemon.sandbay('volume', 'create', 'f', '--size', '8MiB', '--initiator', '*')
    daemon.sandbay('volume', 'create', 'p', '--file', t.path('p.img'), '--size', '8MiB')
    daemon.sandbay('volume', 'create', 'a', '--raid', 'r', '--size', '8MiB', '--initiator', '*')
    for isid, name in enumerate(('disk', 'a', 'f'), 1):
        peer = host.Host(t, daemon, volume=name, isid=isid)
        peer.attentions()
        t.check(peer.write(0, b'\x42' * 65536).good, 'a write')
        t.check(peer.read(0, 128).data == b'\x42' * 65536, 'a read')
        t.check(peer.command(SYNCHRONIZE_CACHE).good, 'a flush')
        peer.close()
    for words in (['drive', 'list'], ['raid', 'list'], ['volume', 'list'], ['event', 'list'],
                  ['group', 'show'], ['session', 'list'], ['volume', 'expand', 'a', '--size',
                                                           '16MiB'],
                  ['volume', 'delete', 'p', '--force'], ['volume', 'delete', 'a', '--force']):
        daemon.sandbay(*words)
    t.check(ask(daemon, 'GET', '/metrics') == 200, 'metrics')
    daemon.process.send_signal(signal.SIGHUP)
    time.sleep(2.5)  # The drives are looked at every second.


def may_block(call, line, allowed):
    """Whether a line of a trace shows a call that could wait. A call that was interrupted by
    another thread's has two lines, which show its arguments between them."""
    shown = MUST_SHOW.get(call, '')
    return call not in allowed or not (shown in line or 'unfinished' in line or 'resumed' in line)


def trace_reactors(t, engine):
    t.need('strace')
    allowed = ALLOWED | ALLOWED_OF_ENGINE[engine]
    daemon = t.daemon(extra=drives(['d0', 'd1'], '96MiB') + raid('r', 'raid1', ['d0', 'd1']),
                      reactors=2, start=False)
    daemon.arguments += ['--io', engine]
    allow_files(t, daemon)
    try:
        daemon.start()
    except harness.Failed as refused:
        if 'io_uring is not permitted here' in str(refused):
            raise harness.Skipped('io_uring is not permitted here')
        raise
    trace = t.path('trace')
    tracer = t.start('strace', '-f', '-qq', '-p', daemon.process.pid, '-o', trace)

    def is_attached():
        with open(f'/proc/{daemon.process.pid}/status', encoding='ascii') as stream:
            return f'TracerPid:\t{tracer.pid}\n' in stream.read()
    t.until(is_attached, 'strace is attached')
    work(t, daemon)
    threads = reactor_threads(daemon)
    t.check(len(threads) == 2, f'{threads}')
    tracer.send_signal(signal.SIGINT)
    tracer.wait(30)
    found = collections.Counter()
    with open(trace, encoding='utf-8', errors='replace') as stream:
        for line in stream:
            match = re.match(r'(\d+) +(?:<\.\.\. )?([a-z0-9_]+)[( ]', line)
            if not match or match[1] not in threads:
                continue
            call = match[2]
            found[line.strip() if may_block(call, line, allowed) else call] += 1
    t.check(any(found[call] for call in ALLOWED_OF_ENGINE[engine]),
            f'the trace has the reactors: {found}')
    others = [call for call in found if call not in allowed]
    t.check(not others, 'calls that may block:\n' + '\n'.join(others[:20]))
    t.say(', '.join(f'{call} {count}' for call, count in found.most_common()))


def test_reactors_call_nothing_that_can_block(t):
    """G-S3, I-5: the system calls of reactors are among those that cannot block."""
    trace_reactors(t, 'io_uring')


def test_reactors_with_epoll_call_nothing_that_can_block(t):
    trace_reactors(t, 'epoll')


# Starting and ending ----------------------------------------------------------------------------

def refusal_of(t, daemon, *options):
    """Exit code and the line of a daemon that does not start."""
    done = t.run(t.program('sandbayd'), *daemon.arguments, *options, ok=False, seconds=60)
    return done.returncode, done.stdout.strip().splitlines()[-1]


def hold(path):
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_start_waits_for_what_another_process_still_holds(t):
    """G-C9: a drive and a port that are let go two seconds after the start."""
    daemon = t.daemon(extra=drives(['d0'], '96MiB') + raid('r', 'jbod', ['d0']))
    t.check(daemon.terminate() == 0, 'an orderly end')
    held = hold(os.path.join(daemon.state, 'drives', 'd0.img'))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(daemon.address())
    listener.listen()
    timers = [threading.Timer(1, listener.close), threading.Timer(2, os.close, [held])]
    for timer in timers:
        timer.start()
    daemon.start()
    for timer in timers:
        timer.join()
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_exit_codes_tell_what_passes_from_what_does_not(t):
    """G-C9: 3 while something is in use, 2 for a file that is wrong."""
    # Each waits some seconds for what is in use, so daemons of their own meet these side by side.
    images = [t.path(f'image{number}') for number in range(5)]
    daemons = [t.daemon([{'name': 'v', 'file': image, 'size': '16MiB'}],
                        extra='[nvram]\nsize = "4MiB"\n' + drives(['d0'], '96MiB') +
                        raid('r', 'jbod', ['d0'])) for image in images]
    for daemon in daemons[1:]:
        t.check(daemon.terminate() == 0, 'an orderly end')
    paths = [images[1], *(os.path.join(daemon.state, name) for daemon, name in
                          zip(daemons[2:], ('drives/d0.img', 'nvram.img')))]
    held = [hold(path) for path in paths]
    with socket.socket() as listener:
        listener.bind(daemons[4].address())
        listener.listen()
        with concurrent.futures.ThreadPoolExecutor(len(daemons)) as pool:
            refusals = list(pool.map(lambda daemon: refusal_of(t, daemon), daemons))
    for descriptor in held:
        os.close(descriptor)
    for place, (code, line) in zip((daemons[0].state, *paths), refusals):
        t.check(code == NOT_NOW and place in line and 'is in use by' in line,
                f'{place} in use: {code}: {line}')
    code, line = refusals[4]
    t.check(code == NOT_NOW and 'address in use' in line, f'port in use: {code}: {line}')
    t.check(daemons[0].terminate() == 0, 'an orderly end')
    image, daemon = images[0], daemons[0]
    with open(daemon.arguments[1], encoding='utf-8') as stream:
        text = stream.read()
    code, line = refusal_of(t, daemon, '--import', t.path('nothing'))
    t.check(code == WRONG_FILE and line.startswith('sandbayd: --import '),
            f'no export: {code}: {line}')
    # The file's name has the words of a refusal that may pass.
    path = t.path('in use by nobody.toml')
    daemon.arguments = ['--config', path]
    for what, changed in (
            ('another group\'s state',
             text.replace('name = "e2e"', f'name = "e2e"\nuuid = "{"1" * 32}"')),
            ('the volume is on a file', text.replace(f'file = "{image}"', 'memory = true')),
            ('an unknown drive in a rule',
             text + '[faults]\nenabled = true\nrules = ["at=drive:d9 do=fail"]\n')):
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(changed)
        code, line = refusal_of(t, daemon)
        t.check(code == WRONG_FILE and line.startswith(f'sandbayd: {path}:'),
                f'{what}: {code}: {line}')


def test_service_manager_hears_what_the_daemon_does(t):
    """G-C9: READY, RELOADING and STOPPING in this order, and more time while it starts and ends."""
    path = t.path('notify')
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    t.at_end(manager.close)
    manager.bind(path)
    manager.settimeout(30)
    heard = []

    def position(state, start):
        """Where `state` is first said from message `start` on."""
        while True:
            for number in range(start, len(heard)):
                if state in heard[number]:
                    return number
            heard.append(manager.recv(4096).decode().splitlines())
    daemon = t.daemon(wrapper=['env', f'NOTIFY_SOCKET={path}'])
    ready = position('READY=1', 0)
    t.check(position('EXTEND_TIMEOUT_USEC=30000000', 0) < ready, f'{heard}')
    daemon.process.send_signal(signal.SIGHUP)
    reloading = position('RELOADING=1', ready)
    again = position('READY=1', reloading)
    daemon.process.send_signal(signal.SIGTERM)
    stopping = position('STOPPING=1', again)
    position('EXTEND_TIMEOUT_USEC=30000000', stopping)
    t.check(daemon.process.wait(harness.STOP_SECONDS) == 0, 'it ends with 0')


def test_unit_is_hardened(t):
    """systemd's own measure of the unit is at most 2.0."""
    t.need('systemd-analyze')
    unit = os.path.join(t.build, 'conf', 'sandbayd.service')
    t.check(stat.S_ISREG(os.stat(unit).st_mode), f'{unit} is made by the build')
    done = t.run('systemd-analyze', 'security', '--offline=true', '--no-pager', unit, ok=None)
    match = re.search(r'Overall exposure level for sandbayd.service: ([0-9.]+)', done.stdout)
    t.check(match and float(match[1]) <= 2.0, done.stdout[-500:])
    t.say(match[0])


# Management --------------------------------------------------------------------------------------

def test_changes_that_wait_leave_threads_for_those_who_look(t):
    """G-L4: seventy changes that wait for a host which does not answer keep nobody from reading."""
    daemon = t.daemon()
    peer = host.Host(t, daemon)
    peer.attentions()
    tsih = daemon.sandbay_json('session', 'list')['sessions'][0]['tsih']
    count, answers = 70, []

    def drop():
        answers.append(ask(daemon, 'DELETE', f'/api/v1/sessions/{tsih}?logout_request=12'))
    drops = [threading.Thread(target=drop) for _ in range(count)]
    for thread in drops:
        thread.start()
    t.until(lambda: 503 in answers, 'some are turned away')
    for _ in range(20):
        t.check(ask(daemon, 'GET', '/metrics') == 200, 'metrics')
    daemon.sandbay('volume', 'create', 'meanwhile', '--size', '1MiB')
    t.check(len(answers) < count, f'others still wait: {len(answers)} answers')
    for thread in drops:
        thread.join()
