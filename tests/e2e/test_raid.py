"""RAID sets under load over iSCSI: drives fail, spares rebuild, the daemon is killed, and the host
reads back what it wrote.
"""
import json
import os
import subprocess
import time

from harness import TOP

LAB = os.path.join(TOP, 'conf', 'raid-lab.toml')
QUICKSTART = os.path.join(TOP, 'conf', 'quickstart.toml')


def the_set(daemon, name='raid50'):
    return daemon.sandbay_json('raid', 'show', name)


def stale(daemon):
    return sum(role['stale_regions'] for role in the_set(daemon)['roles'])


def kinds(daemon):
    return [event['kind'] for event in daemon.sandbay_json('event', 'list')['events']]


def whole(daemon):
    shown = the_set(daemon)
    return (shown['running'] and all(role['state'] == 'active' for role in shown['roles']) and
            stale(daemon) == 0)


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


def test_raid50_keeps_data_through_failures_and_a_kill(t):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon(config=LAB)
    first = image(t, 'first', 64, 1)
    write(t, daemon, first, 'lab')
    before = the_set(daemon)
    t.check(before['level'] == 'raid50' and before['running'], f'a running RAID 50: {before}')
    t.check(len(daemon.sandbay_json('drive', 'list')['drives']) == 18, 'eighteen drives')

    # Load that verifies what it reads, while the first drive fails.
    load = subprocess.Popen(
        [t.program('sandbay'), 'load', '--json', '--queue-depth', '4', '--duration', '8s',
         '--write', '--verify', daemon.url('lab')],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    t.at_end(load.kill)
    time.sleep(1)
    daemon.sandbay('fault', 'add', 'at=drive:d3', 'do=fail')
    t.until(lambda: 'spare taken' in kinds(daemon), 'a spare is taken')
    t.until(lambda: 'rebuild started' in kinds(daemon), 'the rebuild begins')
    output = load.communicate(timeout=60)[0]
    t.check(load.returncode == 0, f'no error at the host: {output[-2000:]}')
    write(t, daemon, first, 'lab')
    t.until(lambda: whole(daemon), 'the spare is rebuilt', 60)
    failed = daemon.sandbay_json('drive', 'show', 'd3')
    t.check(failed['use'] == 'failed', f'd3 is failed: {failed["use"]}')
    require_same(t, daemon, first, 'lab', 'after the rebuild')

    # A second failure, and the daemon is killed in the middle of the rebuild.
    daemon.sandbay('fault', 'add', 'at=drive:d9', 'do=fail')
    second = image(t, 'second', 64, 2)
    write(t, daemon, second, 'lab')
    t.until(lambda: kinds(daemon).count('rebuild started') >= 2, 'the second rebuild begins')
    rest = stale(daemon)
    daemon.kill()
    daemon.start()
    t.say(f'killed with {rest} regions to rebuild, {stale(daemon)} after the restart')
    t.check(the_set(daemon)['running'], 'the set runs after the restart')
    require_same(t, daemon, second, 'lab', 'after the kill')
    t.until(lambda: whole(daemon), 'the rebuild is resumed and ends', 60)
    require_same(t, daemon, second, 'lab', 'after the second rebuild')
    daemon.sandbay('raid', 'verify', 'raid50', '--wait')
    t.check(the_set(daemon)['counters']['mismatches'] == 0, 'parity is consistent')
    t.check(daemon.terminate() == 0, 'an orderly end')


def test_the_quickstart_survives_a_failed_drive(t):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon(config=QUICKSTART)
    data = image(t, 'data', 32, 3)
    write(t, daemon, data, 'quickstart')
    daemon.sandbay('drive', 'fail', 'd1')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the spare is rebuilt', 60)
    require_same(t, daemon, data, 'quickstart', 'with the spare')
    daemon.kill()
    daemon.start()
    require_same(t, daemon, data, 'quickstart', 'after a kill')
    shown = the_set(daemon, 'raid10')
    t.check(shown['roles'][1]['drive'] == 'spare', f'the spare has the role: {shown["roles"]}')
    t.check(shown['notes'], 'the disagreement with the file is told')


def test_faults_are_refused_unless_enabled(t):
    daemon = t.daemon()
    done = daemon.sandbay('fault', 'add', 'at=drive:d0', 'do=fail', ok=False)
    t.check('faults are not enabled' in done.stdout, f'the refusal says why: {done.stdout}')
    t.check(daemon.sandbay_json('fault', 'list')['enabled'] is False, 'the list says so, too')


def test_an_image_volume_of_an_older_quickstart_is_kept(t):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon([{'name': 'quickstart', 'size': '1GiB'}])
    data = image(t, 'data', 8, 4)
    write(t, daemon, data, 'quickstart')
    t.check(daemon.terminate() == 0, 'an orderly end')
    daemon.arguments = ['--config', QUICKSTART, '--management', daemon.management, '--state',
                        daemon.state, '--portal', daemon.portal]
    daemon.start()
    require_same(t, daemon, data, 'quickstart', 'under the new configuration')
    volume = daemon.sandbay_json('volume', 'show', 'quickstart')
    t.check(volume['backing'] == 'state', f'it stays on its file: {json.dumps(volume)}')
