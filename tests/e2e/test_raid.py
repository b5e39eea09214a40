"""RAID sets under load over iSCSI: drives fail, spares rebuild, the daemon is killed, and the host
reads back what it wrote.
"""
import json
import os
import time

from harness import TOP
from raid_lab import (Load, drives, faults, image, kinds, raid, require_same, stale, the_drive,
                      the_set, whole, write)

RAID50 = os.path.join(TOP, 'conf', 'raid50.toml')
QUICKSTART = os.path.join(TOP, 'conf', 'quickstart.toml')


def test_raid50_keeps_data_through_failures_and_a_kill(t):
    """The host stays attached all the time; its load verifies all that it wrote."""
    t.need('qemu-img', 'openssl')
    names = [f'd{i}' for i in range(16)]
    daemon = t.daemon([{'name': 'lab', 'raid': 'raid50', 'size': '192MiB'}], extra=(
        drives(names, '24MiB', spares=('s0', 's1')) +
        raid('raid50', 'raid50', names, groups=2, rebuild_rate='12MB/s', journal='4MiB') +
        faults()))
    shown = the_set(daemon, 'raid50')
    t.check(shown['level'] == 'raid50' and shown['running'], f'a running RAID 50: {shown}')
    data = image(t, 'data', 64, 1)
    write(t, daemon, data, 'lab')  # Before the part that the load writes.
    load = Load(t, daemon.url('lab'), '--queue-depth', '8', '--rate', '300', '--offset', '64MiB',
                '--block-size', '16KiB')

    time.sleep(2)
    daemon.sandbay('fault', 'add', 'at=drive:d3', 'do=fail')
    t.until(lambda: 'spare taken' in kinds(daemon), 'a spare is taken')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the spare is rebuilt', 60)
    t.check(whole(daemon, 'raid50'), 'the set is whole with its spare')
    failed = the_drive(daemon, 'd3')
    t.check(failed['use'] == 'failed', f'd3 is failed: {failed["use"]}')

    daemon.sandbay('fault', 'add', 'at=drive:d9', 'do=fail')
    t.until(lambda: kinds(daemon).count('rebuild started') == 2, 'the second rebuild begins')
    regions = the_set(daemon, 'raid50')['roles'][9]['stale_regions']
    t.until(lambda: 0 < stale(daemon, 'raid50') < regions * 3 // 4, 'the rebuild is under way')
    before = stale(daemon, 'raid50')
    load.require_running('before the kill')
    daemon.kill()
    time.sleep(1)
    daemon.start()
    after = stale(daemon, 'raid50')
    t.say(f'of {regions} regions, {before} were stale before the kill, {after} after the restart')
    t.check(the_set(daemon, 'raid50')['running'], 'the set runs after the restart')
    t.check(0 < after < regions, 'the rebuild goes on where it was, not from the beginning')
    t.until(lambda: whole(daemon, 'raid50'), 'the rebuild is resumed and ends', 60)
    load.require_running('before the second rebuild has ended')

    report = load.require_good()
    t.check(report['connections_lost'] >= 1, 'the load was attached when the daemon was killed')
    require_same(t, daemon, data, 'lab', 'at the end')
    daemon.sandbay('raid', 'verify', 'raid50', '--wait')
    t.check(the_set(daemon, 'raid50')['counters']['mismatches'] == 0, 'parity is consistent')
    t.check(daemon.terminate() == 0, 'an orderly end')


test_raid50_keeps_data_through_failures_and_a_kill.minutes = 1


def test_a_load_that_may_not_reconnect_fails(t):
    daemon = t.daemon()
    words = ['--duration', '10min', '--reconnect', '0s', '--queue-depth', '2', daemon.url()]
    load = t.start(t.program('sandbay'), 'load', '--json', *words)
    time.sleep(2)
    daemon.kill()
    t.until(lambda: load.poll() is not None, 'the load gives up, long before its end', 15)
    t.check(load.returncode == 1, f'and says so: {load.returncode}')


def test_the_raid50_configuration_starts(t):
    daemon = t.daemon(config=RAID50)
    shown = the_set(daemon, 'raid50')
    t.check(shown['level'] == 'raid50' and shown['running'], f'a running RAID 50: {shown}')
    t.check(len(daemon.sandbay_json('drive', 'list')['drives']) == 18, 'eighteen drives')
    t.check(daemon.sandbay_json('fault', 'list')['enabled'], 'faults are enabled')


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
    t.check(shown['notes'], 'the set notes that the file disagrees')


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
