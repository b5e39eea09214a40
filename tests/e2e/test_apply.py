"""sandbay apply: the difference is shown, made, and gone the second time."""
import json

from raid_lab import drives, raid

DRIVES = ['d0', 'd1']

DOCUMENT = '''
[[pool]]
name = "p"
page = "1MiB"

[[volume]]
name = "db"
size = "16MiB"
pool = "p"
thin = true
bytes_limit = "40MB/s"
  [[volume.access]]
  initiator = "iqn.2026-11.org.sandbay:*"
  chap_user = "u"
  chap_secret_file = "secret"
  [[volume.schedule]]
  name = "hourly"
  every = "1h"
  keep = 3

[[volume]]
name = "scratch"
size = "1MiB"
memory = true
'''


def put(t, text, name='group.toml'):
    with open(t.path(name), 'w', encoding='utf-8') as stream:
        stream.write(text)
    return t.path(name)


def changes(daemon, *words):
    return daemon.sandbay_json('apply', *words)['changes']


def test_a_document_is_applied_once(t):
    daemon = t.daemon(extra=drives(DRIVES, '64MiB') + raid('a', 'raid1', DRIVES, journal='1MiB'))
    put(t, 'correct-horse-battery\n', 'secret')
    path = put(t, DOCUMENT)
    shown = daemon.sandbay('apply', path, '--dry-run').stdout
    t.check('+ pool p' in shown and '+ volume db: ' in shown and 'Nothing was changed' in shown,
            shown)
    t.check('correct-horse' not in shown, 'the secret is shown')
    asked = daemon.sandbay('apply', path, ok=False).stdout
    t.check('add --yes' in asked, asked)
    t.check(not daemon.sandbay_json('pool', 'list')['pools'], 'nothing was made')
    daemon.sandbay('apply', path, '--yes')
    volume = daemon.sandbay_json('volume', 'show', 'db')
    t.check(volume['thin'] and volume['bytes_limit'] == 40_000_000, str(volume))
    access = daemon.sandbay_json('access', 'list', 'db')['access']
    t.check(len(access) == 1 and access[0]['chap_user'] == 'u', str(access))
    again = daemon.sandbay('apply', path).stdout
    t.check('everything is as it says' in again, again)

    # What is left out stays, until it is pruned; what the daemon's file declares stays always.
    smaller = DOCUMENT.replace('size = "16MiB"', 'size = "24MiB"').replace('keep = 3', 'keep = 4')
    smaller = smaller[:smaller.index('[[volume]]\nname = "scratch"')]
    path = put(t, smaller)
    t.check([c['change'] for c in changes(daemon, path, '--yes')] == ['~', '~', '+'], 'changes')
    t.check(daemon.sandbay_json('volume', 'show', 'db')['size'] == 24 << 20, 'it has grown')
    gone = changes(daemon, path, '--prune', '--yes')
    t.check([c['text'].split(':')[0] for c in gone] == ['volume scratch and its data'], str(gone))
    names = {row['name'] for row in daemon.sandbay_json('volume', 'list')['volumes']}
    t.check(names == {'db', 'disk'}, str(names))
    t.check(not changes(daemon, path, '--prune'), 'a second time there is none')
    # A volume goes without its snapshots alone: the schedule goes first, then what it has taken.
    unscheduled = smaller[:smaller.index('  [[volume.schedule]]')]
    gone = changes(daemon, put(t, unscheduled), '--prune', '--yes')
    t.check([c['text'] for c in gone] == ['volume db: schedule hourly'], str(gone))
    for taken in daemon.sandbay_json('snapshot', 'list', 'db')['snapshots']:
        daemon.sandbay('snapshot', 'delete', 'db', taken['name'])
    path = put(t, json.dumps({'pool': [{'name': 'p'}], 'volume': []}), 'group.json')
    daemon.sandbay('apply', path, '--prune', '--yes')
    names = {row['name'] for row in daemon.sandbay_json('volume', 'list')['volumes']}
    t.check(names == {'disk'}, str(names))


REFUSED = [
    (DOCUMENT.replace('size = "16MiB"', 'size = "8MiB"'), 'would lose data'),
    (DOCUMENT.replace('pool = "p"', 'pool = "q"'), 'cannot change'),
    (DOCUMENT.replace('page = "1MiB"', 'page = "2MiB"'), 'cannot become'),
    (DOCUMENT.replace('thin = true', 'thinn = true'), 'group.toml:10: volume[1].thinn'),
    (DOCUMENT.replace('every = "1h"', 'every = "soon"'), 'every'),
    (DOCUMENT.replace('name = "scratch"', 'name = "db"'), 'occurs twice'),
    (DOCUMENT.replace('chap_user = "u"', ''), 'chap_user'),
    ('[[volume', 'not TOML'),
    ('{"volume": 1}', 'volume'),
]


def test_what_cannot_be_is_refused_before_anything_changes(t):
    daemon = t.daemon(extra=drives(DRIVES, '64MiB') + raid('a', 'raid1', DRIVES, journal='1MiB'))
    put(t, 'correct-horse-battery\n', 'secret')
    daemon.sandbay('apply', put(t, DOCUMENT), '--yes')
    before = daemon.sandbay_json('audit', 'list')['changes']
    for text, word in REFUSED:
        said = daemon.sandbay('apply', put(t, text), '--yes', ok=False).stdout
        t.check(word in said and len(said.strip().splitlines()) == 1, f'{word}: {said}')
    t.check(daemon.sandbay_json('audit', 'list')['changes'] == before, 'something was asked for')
