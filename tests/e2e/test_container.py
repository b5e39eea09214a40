"""Sandbay where people test: in a container with the default filter of system calls."""
import os

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
