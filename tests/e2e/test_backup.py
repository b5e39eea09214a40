"""The backup of the metadata: export, import, and the verification of maps while nothing runs."""
import json
import os
import shutil

from raid_lab import drives, image, raid, require_same, write

DRIVES = ['d0', 'd1']


def sections(size='96MiB'):
    return (drives(DRIVES, size) + raid('a', 'raid1', DRIVES, journal='1MiB') +
            '[[pool]]\nname = "p"\npage = "1MiB"\n')


def provision(t, more=''):
    t.need('qemu-img', 'openssl')
    daemon = t.daemon([{'name': 'v', 'size': '24MiB', 'thin': True}], extra=more + sections())
    data = image(t, 'data', 8, 1)
    write(t, daemon, data, 'v')
    daemon.sandbay('snapshot', 'create', 'v', 's')
    newer = image(t, 'newer', 8, 2)
    write(t, daemon, newer, 'v')
    daemon.sandbay('volume', 'create', 'w', '--size', '8MiB', '--pool', 'p', '--thin',
                   '--initiator', '*')
    export = t.path('export.json')
    said = daemon.sandbay('group', 'export', export).stdout
    t.check('keep it safe' in said, said)
    t.check(os.stat(export).st_mode & 0o077 == 0, 'others can read the export')
    with open(export, encoding='utf-8') as stream:
        t.check(json.load(stream)['name'] == 'e2e', 'the export is JSON')
    return daemon, data, newer, export


def require_everything(t, daemon, data, newer):
    require_same(t, daemon, newer, 'v', 'after the import')
    daemon.sandbay('snapshot', 'online', 'v', 's')
    require_same(t, daemon, data, 'v-s', 'the snapshot')
    names = {row['name'] for row in daemon.sandbay_json('volume', 'list')['volumes']}
    t.check(names == {'v', 'w'}, str(names))
    checked = daemon.sandbay_json('group', 'check')['pools']
    t.check(checked and not checked[0]['wrong'], str(checked))


def lose_metadata(daemon):
    """What stays of the state directory: the drives."""
    shutil.rmtree(os.path.join(daemon.state, 'metadata'))


def test_an_export_brings_back_what_a_lost_directory_held(t):
    daemon, data, newer, export = provision(t)
    t.check(daemon.terminate() == 0, 'an orderly end')
    lose_metadata(daemon)
    done = t.run(t.program('sandbayd'), *daemon.arguments, '--import', export)
    t.check('records taken in' in done.stdout, done.stdout)
    checked = t.run(t.program('sandbayd'), *daemon.arguments, '--check-map')
    t.check('all is well' in checked.stdout, checked.stdout)
    daemon.start()
    require_everything(t, daemon, data, newer)
    t.check(daemon.terminate() == 0, 'an orderly end')
    again = t.run(t.program('sandbayd'), *daemon.arguments, '--import', export, ok=False)
    t.check(again.returncode == 2 and 'name an empty state directory' in again.stdout, again.stdout)
    t.run(t.program('sandbayd'), *daemon.arguments, '--import', export, '--force')
    daemon.start()
    t.check(len(daemon.sandbay_json('volume', 'list')['volumes']) == 2, 'both volumes')


def test_an_export_of_a_running_daemon_needs_no_nvram(t):
    """Its NVRAM is lost with the directory, or there with what came after the export."""
    nvram = '[nvram]\nsize = "24MiB"\npower_loss_only_emulated = true\n'
    daemon, data, newer, export = provision(t, nvram)
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 12M 3M', daemon.url('v'))
    daemon.kill()
    t.run(t.program('sandbayd'), *daemon.arguments, '--import', export, '--force')
    daemon.start()
    checked = daemon.sandbay_json('group', 'check')['pools']
    t.check(checked and not checked[0]['wrong'], str(checked))
    require_same(t, daemon, newer, 'v', 'with newer changes in the NVRAM')
    daemon.kill()
    lose_metadata(daemon)
    os.remove(os.path.join(daemon.state, 'nvram.img'))
    t.run(t.program('sandbayd'), *daemon.arguments, '--import', export)
    daemon.start()
    require_everything(t, daemon, data, newer)


def test_an_import_into_a_running_group_counts_from_its_next_start(t):
    daemon, data, newer, export = provision(t)
    daemon.sandbay('volume', 'delete', 'w')
    refused = daemon.sandbay('group', 'import', export, ok=False).stdout
    t.check('of which an import would know nothing' in refused, refused)
    said = daemon.sandbay('group', 'import', export, '--force').stdout
    t.check('restart the daemon' in said, said)
    t.check(len(daemon.sandbay_json('volume', 'list')['volumes']) == 1, 'nothing has changed yet')
    daemon.kill()
    daemon.start()
    require_everything(t, daemon, data, newer)
    with open(export, 'r+', encoding='utf-8') as stream:
        text = stream.read().replace('"count"', '"cound"')
        stream.seek(0)
        stream.write(text)
    withdrawn = daemon.sandbay('group', 'import', '--withdraw').stdout
    t.check('No import waits' in withdrawn, withdrawn)
    broken = daemon.sandbay('group', 'import', export, '--force', ok=False).stdout
    t.check('is not a usable export' in broken, broken)


def test_maps_are_verified_while_nothing_runs(t):
    daemon = t.daemon([{'name': 'v', 'size': '24MiB', 'thin': True}], extra=sections())
    busy = t.run(t.program('sandbayd'), *daemon.arguments, '--check-map', ok=False)
    t.check(busy.returncode == 3 and daemon.state in busy.stdout, busy.stdout)
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 5M', daemon.url('v'))
    daemon.kill()
    done = t.run(t.program('sandbayd'), *daemon.arguments, '--check-map')
    t.check('pool p: 5 pages, 1 branches' in done.stdout, done.stdout)
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 1 0 5M', daemon.url('v'))
