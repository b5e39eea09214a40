"""Sandbay where people test: in a container with the default filter of system calls."""
import os
import shutil

import harness

IN_CONTAINER = os.path.join(harness.TOP, 'tests', 'e2e', 'in_container')
# One of everything that keeps data; tools/check --long runs all that a container can.
CHOSEN = ('login.chap_right', 'storage.qemu_io', 'raid.the_quickstart', 'cache.power_cuts_with_a',
          'pool.a_pool_without_nvram', 'power.what_was_not_flushed', 'recovery.')
PORTS = '24000-24199'  # Beside those of the tests around it.


def need_container(t):
    t.need('bwrap')
    if os.geteuid() != 0:
        raise harness.Skipped('bubblewrap is not tried without root, nor in a container')


def test_data_is_safe_without_io_uring_and_privileges(t):
    need_container(t)
    done = t.run(IN_CONTAINER, os.path.join(harness.TOP, 'tests', 'e2e', 'run'), '--build', t.build,
                 '--jobs', 2, *CHOSEN, ok=None, env=os.environ | {'SANDBAY_E2E_PORTS': PORTS})
    summary = done.stdout.strip().splitlines()[-1]
    t.say(summary)
    t.check(done.returncode == 0 and ' 0 failed, 0 skipped' in summary, done.stdout)


def test_nobody_in_a_container_is_not_everybody_elsewhere(t):
    """Users of other user namespaces all appear as the uid that the daemon has."""
    need_container(t)
    t.need('setpriv')
    daemon = t.daemon(wrapper=[IN_CONTAINER])
    for stranger in ([], ['setpriv', '--reuid', '12345', '--clear-groups']):
        done = t.run(*stranger, t.program('sandbay'), '--management',
                     f'http://{daemon.management}', 'volume', 'list', ok=False)
        t.check('may not manage this daemon without a token' in done.stdout, done.stdout)


def make_root(t):
    """A root with the two programs, at their places, their libraries, and nothing else."""
    root = t.path('root')
    programs = [t.program('sandbayd'), t.program('sandbay')]
    needed = set(programs)
    for program in programs:
        for line in t.run('ldd', program).stdout.splitlines():
            needed.update(word for word in line.split() if word.startswith('/'))
    for path in needed:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        shutil.copy(path, root + path)
    for folder in ('tmp', 'dev', 'proc'):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    return root


def test_two_programs_and_their_libraries_are_a_container(t):
    """Filled, changed, set back and killed in a root of their own: every byte is as promised."""
    need_container(t)
    t.need('qemu-io', 'ldd')
    root = make_root(t)
    inside = [IN_CONTAINER, '--root', root]
    daemon = t.daemon([{'name': 'v', 'size': '64MiB', 'pool': 'p'}], wrapper=inside, start=False,
                      extra='[[drive]]\nname = "d"\ncount = 4\nfile = "drives/{}"\nsize = "96MiB"\n'
                            '[[raid]]\nname = "s"\nlevel = "raid5"\ndrives = ["d0..d3"]\n'
                            'journal = "1MiB"\n[[pool]]\nname = "p"\npage = "1MiB"\n')
    token = t.path('token')
    with open(token, 'w', encoding='utf-8') as stream:
        stream.write('0123456789abcdef0123456789abcdef\n')
    os.chmod(token, 0o600)
    daemon.arguments += ['--token-file', token]
    daemon.start()
    with open(daemon.log, encoding='utf-8') as stream:
        t.check('runs with epoll and threads' in stream.read(), 'io_uring is forbidden there')

    def manage(*words):
        return t.run(t.program('sandbay'), '--management', f'http://{daemon.management}',
                     '--token-file', token, *words)

    def io(*commands):
        words = [word for command in commands for word in ('-c', command)]
        return t.run('qemu-io', '-f', 'raw', *words, daemon.url('v'))

    io('write -P 1 0 32M', 'write -P 2 32M 32M', 'flush', 'read -P 1 0 32M')
    manage('snapshot', 'create', 'v', 'before')
    io('write -P 3 0 16M', 'write -z 40M 8M', 'flush', 'read -P 3 0 16M', 'read -P 0 40M 8M')
    manage('snapshot', 'restore', 'v', 'before')
    io('read -P 1 0 32M', 'read -P 2 32M 32M', 'write -P 4 1M 1M', 'flush')
    daemon.kill()
    daemon.start()
    io('read -P 1 0 1M', 'read -P 4 1M 1M', 'read -P 1 2M 30M', 'read -P 2 32M 32M')
    done = manage('group', 'check')
    t.check('all is well' in done.stdout, done.stdout)
    # Both programs inside, a daemon around the other one.
    done = t.run(*inside, t.program('sandbay'), 'run', '--volume', 'inner=8MiB', '--',
                 t.program('sandbay'), 'volume', 'list')
    t.check('inner' in done.stdout, done.stdout)


RAID_AND_FILES = (
    '[[drive]]\nname = "d"\ncount = 3\nfile = "drives/{}"\nsize = "64MiB"\n'
    '[[raid]]\nname = "s"\nlevel = "raid5"\ndrives = ["d0..d2"]\njournal = "1MiB"\n'
    '[nvram]\nsize = "32MiB"\n')
VOLUMES = [{'name': 'raid', 'size': '16MiB', 'raid': 's'}, {'name': 'file', 'size': '16MiB'},
           {'name': 'whole', 'size': '16MiB', 'preallocate': True}]


def keeps_data(t, daemon, volumes=('raid', 'file', 'whole')):
    """Written, zeroed, unmapped, killed: what was flushed is as it was."""
    def io(volume, *commands):
        words = [word for command in commands for word in ('-c', command)]
        t.run('qemu-io', '-d', 'unmap', '-f', 'raw', *words, daemon.url(volume))
    for volume in volumes:
        io(volume, 'write -P 5 0 8M', 'write -z 1M 64k', 'discard 2M 1M', 'write -P 6 3M 4k',
           'flush')
    daemon.kill()
    daemon.start()
    for volume in volumes:
        io(volume, 'read -P 5 0 1M', 'read -P 0 1M 64k', 'read -P 6 3M 4k', 'read -P 5 4M 4M')
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_state_is_safe_on_filesystems_of_containers(t):
    """Without O_DIRECT (ramfs), without fallocate or holes (ramfs, FUSE), or with them."""
    t.need('qemu-io', 'mount', 'bindfs')
    if os.geteuid() != 0:
        raise harness.Skipped('only root can mount')
    for kind in ('ramfs', 'tmpfs', 'overlay', 'fuse'):
        for engine in ('auto', 'epoll'):
            daemon = t.daemon(VOLUMES, extra=RAID_AND_FILES, start=False)
            options = 'size=400m'
            if kind == 'overlay':
                parts = {part: t.path(f'{part}-{engine}') for part in ('lower', 'upper', 'work')}
                for folder in parts.values():
                    os.mkdir(folder)
                options = ','.join(f'{name}dir={folder}' for name, folder in parts.items())
            if kind == 'fuse':
                shutil.copytree(daemon.state, t.path(f'below-{engine}'))
                t.run('bindfs', '--no-allow-other', t.path(f'below-{engine}'), daemon.state)
            else:
                t.run('mount', '-t', kind, '-o', options, 'none', daemon.state)
            t.at_end(t.run, 'umount', daemon.state)
            daemon.arguments += ['--io', engine]
            daemon.start()
            if kind not in ('ramfs', 'fuse'):
                keeps_data(t, daemon)
                continue
            with open(daemon.log, encoding='utf-8') as stream:
                t.check('reserves no space; leave out preallocate' in stream.read(), 'says why')
            keeps_data(t, daemon, ('raid', 'file'))


def test_one_processor_and_little_memory_are_enough(t):
    t.need('qemu-io', 'taskset')
    for engine in ('auto', 'epoll'):
        daemon = t.daemon(VOLUMES, start=False, wrapper=['taskset', '-c', '0'],
                          extra='[cache]\nmemory = "16MiB"\n' + RAID_AND_FILES)
        daemon.arguments += ['--io', engine]
        with open(daemon.arguments[1], encoding='utf-8') as stream:
            text = stream.read()
        with open(daemon.arguments[1], 'w', encoding='utf-8') as stream:
            stream.write(text.replace('[group]\n', '[group]\nmemory_limit = "64MiB"\n'))
        daemon.start()
        group = daemon.sandbay_json('group', 'show')
        t.check(group['reactors'] == 1, f'{group["reactors"]} reactors on one processor')
        keeps_data(t, daemon)
