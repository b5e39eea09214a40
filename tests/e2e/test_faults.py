"""Every fault that drives, enclosures, NVRAM and power can have, in a running daemon: put there by
the file, the command line or REST in turn, with its effect at the drive or the set, and no error
at a host that is attached and verifies wherever redundancy suffices.
"""
import json
import re
import signal
import time
import urllib.error
import urllib.request

from harness import Failed
from raid_lab import (Load, drives, events, faults, kinds, raid, stale, the_drive, the_set, whole)

RATE = ['--queue-depth', '8', '--rate', '400']


def bay(t, *rules, level='raid5', count=4, spares=(), sections='', size='16MiB', integrity=False,
        volume='12MiB', **keys):
    """A set under a volume; drives have the enclosure "shelf"."""
    names = [f'd{i}' for i in range(count)]
    return t.daemon(
        [{'name': 'v', 'raid': 'r', 'size': volume}],
        extra=(drives(names, size, spares=spares, enclosure='shelf') +
               raid('r', level, names, journal='2MiB', integrity=integrity, rebuild_rate='100MB/s',
                    **keys) + sections +
               faults(*rules)))


def add(daemon, rule):
    """By the command line and by REST in turn: they mean the same."""
    daemon.turn = not getattr(daemon, 'turn', False)
    if daemon.turn:
        return daemon.sandbay_json('fault', 'add', *rule.split())
    request = urllib.request.Request(f'http://{daemon.management}/api/v1/faults', method='POST',
                                     data=json.dumps({'rule': rule}).encode(),
                                     headers={'Content-Type': 'application/json'})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def rule_of(daemon, number=0):
    return daemon.sandbay_json('fault', 'list')['faults'][number]


def counters(daemon):
    return the_set(daemon, 'r')['counters']


def attached(t, daemon, *words):
    return Load(t, daemon.url('v'), *RATE, *words)


def at_rest(t, daemon, seconds=60):
    t.until(lambda: whole(daemon, 'r') and
            the_set(daemon, 'r')['progress']['kind'] == 'nothing', 'the set is whole', seconds)


def consistent(t, daemon):
    before = counters(daemon)['mismatches']
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    t.check(counters(daemon)['mismatches'] == before, 'verify finds parity consistent')
    t.check(not the_set(daemon, 'r')['lost'], 'nothing is lost')


def test_fail(t):
    daemon = bay(t, 'at=drive:d1 op=write after=50 do=fail', spares=('s0',))  # By the file.
    load = attached(t, daemon)
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'a spare is taken and rebuilt', 60)
    t.check(the_drive(daemon, 'd1')['use'] == 'failed', 'd1 is failed')
    load.require_good()
    consistent(t, daemon)


def test_fail_transient(t):
    daemon = bay(t)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=fail.transient for=2s')
    t.until(lambda: the_set(daemon, 'r')['health'] == 'degraded', 'the set is degraded')
    time.sleep(3)
    load.require_good()
    t.check(the_set(daemon, 'r')['running'], 'the set runs')


def test_pull_and_insert(t):
    daemon = bay(t)
    at_rest(t, daemon)
    load = attached(t, daemon, '--span', '2MiB')
    add(daemon, 'at=drive:d2 do=pull for=2s')
    t.until(lambda: the_drive(daemon, 'd2')['health'] == 'missing', 'd2 is missing')
    t.until(lambda: 'drive returned' in kinds(daemon), 'd2 returns')
    t.until(lambda: 'rebuild started' in kinds(daemon), 'and is rebuilt')
    regions = the_set(daemon, 'r')['regions']
    text = [e['text'] for e in events(daemon) if e['kind'] == 'rebuild started']
    at_rest(t, daemon)
    load.require_good()
    t.check(text and f'{regions} of {regions}' not in text[0],
            f'only what was written meanwhile is rebuilt: {text}')
    consistent(t, daemon)


def test_pulled_and_another_inserted(t):
    daemon = bay(t)
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'id=back at=drive:d2 do=insert content=other event=then')
    add(daemon, 'at=drive:d2 do=pull for=1s then=rule:back')
    t.until(lambda: the_set(daemon, 'r')['health'] == 'degraded', 'the set is degraded')
    time.sleep(3)
    t.check(the_drive(daemon, 'd2')['use'] != 'member', 'another drive is not adopted silently')
    load.require_good()


def test_another_inserted_while_nobody_looks(t):
    for level, count in (('raid1', 2), ('raid5', 4), ('raid10', 4)):
        daemon = bay(t, level=level, count=count)
        at_rest(t, daemon)
        t.run('qemu-io', '-f', 'raw', '-c', 'write -P 7 0 12M', '-c', 'flush', daemon.url('v'))
        daemon.sandbay('fault', 'add', 'at=drive:d1', 'do=pull')
        daemon.sandbay('fault', 'add', 'at=drive:d1', 'do=insert', 'content=other')
        t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 0 12M', daemon.url('v'))
        t.until(lambda: the_set(daemon, 'r')['health'] == 'degraded', f'{level} is degraded')
        t.check(the_drive(daemon, 'd1')['use'] != 'member', f'{level}: adopted silently')
        daemon.terminate()


def test_a_pulled_drive_is_missed_without_load(t):
    daemon = bay(t)
    at_rest(t, daemon)
    daemon.sandbay('fault', 'add', 'at=drive:d2', 'do=pull')
    t.until(lambda: the_set(daemon, 'r')['health'] == 'degraded', 'the set is degraded')
    t.check('drive missing' in kinds(daemon), f'told: {kinds(daemon)}')


def test_lse(t):
    daemon = bay(t, 'at=drive:d0 do=lse lba=16384+512')
    load = attached(t, daemon)
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    load.require_good()
    t.check(the_drive(daemon, 'd0')['counters']['medium_errors'] > 0, 'medium errors are counted')
    t.check(counters(daemon)['corrections'] > 0, 'they are corrected')
    t.check(the_drive(daemon, 'd0')['unreadable_blocks'] == 0, 'all has been rewritten')
    t.check('medium error repaired' in kinds(daemon), 'and told')


def test_lse_growing(t):
    daemon = bay(t, spares=('s0',))
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d0 do=lse.growing lba=10000+8000 rate=40 cluster=4 threshold=20')
    t.until(lambda: 'predicted failure' in kinds(daemon), 'the failure is predicted')
    t.until(lambda: 'copy ended' in kinds(daemon), 'it is copied to the spare in time', 60)
    load.require_good()
    t.check(the_set(daemon, 'r')['roles'][0]['drive'] == 's0', 'the spare has the role')
    consistent(t, daemon)


def test_write_error(t):
    daemon = bay(t, spares=('s0',))
    load = attached(t, daemon)
    add(daemon, 'at=drive:d3 op=write after=20 do=write.error')
    t.until(lambda: 'drive failed' in kinds(daemon), 'a drive that cannot write goes')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'a spare is rebuilt', 60)
    load.require_good()
    consistent(t, daemon)


def test_recovered(t):
    daemon = bay(t)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d0 op=read do=recovered count=5')
    t.until(lambda: the_drive(daemon, 'd0')['recovered_errors'] >= 5, 'the drive counts them')
    load.require_good()
    t.check(the_drive(daemon, 'd0')['use'] == 'member', 'it stays')


def test_slow(t):
    daemon = bay(t)
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 op=read do=slow latency=300ms for=20s')
    t.until(lambda: counters(daemon)['reads_around'] > 5, 'it is read around')
    t.check(the_drive(daemon, 'd1')['counters']['slow_reads'] > 0, 'and reported')
    load.require_good()
    t.check(the_drive(daemon, 'd1')['use'] == 'member', 'it stays')


def test_stall(t):
    daemon = bay(t)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=stall for=1s')
    time.sleep(2)
    load.require_good()
    t.check(the_drive(daemon, 'd1')['use'] == 'member', 'a blip moves no data')
    t.check('spare taken' not in kinds(daemon), 'and takes no spare')


def test_hang(t):
    daemon = bay(t, spares=('s0',))
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 op=write after=10 do=hang')
    t.until(lambda: 'spare taken' in kinds(daemon), 'it is taken out after its timeout', 90)
    daemon.sandbay('fault', 'clear')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the spare is rebuilt', 60)
    text = [event['text'] for event in events(daemon) if event['kind'] == 'drive failed']
    t.check(text and 'timed out' in text[0], f'and it is said why: {text}')
    load.require_good()
    t.check(daemon.terminate() == 0, 'nothing is left behind')


def corruption(t, rule, found='corruptions', **options):
    """Damage that only integrity can tell: found, repaired, never returned."""
    daemon = bay(t, integrity=True, **options)
    at_rest(t, daemon)
    load = attached(t, daemon)
    time.sleep(1)
    add(daemon, rule)
    t.until(lambda: rule_of(daemon)['fired'] > 0, f'{rule} has fired')
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    load.require_good()
    shown = counters(daemon)
    t.check(shown[found] > 0, f'it is found: {shown}')
    t.check(not the_set(daemon, 'r')['lost'], 'nothing is lost')
    printed = daemon.sandbay('raid', 'show', 'r').stdout
    t.check('corruptions' in printed, 'raid show has the counters')
    with urllib.request.urlopen(f'http://{daemon.management}/metrics', timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'sandbay_raid_{found}_total{{set="r"}} '
    value = [line[len(wanted):] for line in lines if line.startswith(wanted)]
    t.check(value and int(value[0]) > 0, f'the metrics have it: {value}')


def test_flip_at_rest(t):
    corruption(t, 'at=drive:d0 do=flip where=rest lba=8192+4096 bits=40')


def test_flip_in_reads(t):
    corruption(t, 'at=drive:d0 op=read do=flip where=read bits=3 count=1 for=1s')


def test_flip_in_writes(t):
    corruption(t, 'at=drive:d0 op=write lba=8192+20000 do=flip where=write bits=3 count=5')


def test_misdirected_write(t):
    corruption(t, 'at=drive:d0 op=write lba=8192+20000 do=misdirect.write to=9000 count=3')


def test_misdirected_read(t):
    corruption(t, 'at=drive:d0 op=read lba=8192+20000 do=misdirect.read to=9000 '
                  'count=1 for=1s')


def test_lost_write(t):
    corruption(t, 'at=drive:d0 op=write lba=8192+10000 do=lost count=3')


def test_torn_write(t):
    corruption(t, 'at=drive:d0 op=write lba=8192+10000 length=8.. do=torn keep=first:1 count=3')


def test_stale_content(t):
    daemon = bay(t, integrity=True)
    at_rest(t, daemon)
    load = attached(t, daemon)
    time.sleep(1)
    add(daemon, 'at=drive:d0 op=write after=200 do=stale lba=8192+8000')
    t.until(lambda: rule_of(daemon)['fired'] > 0, 'it has fired')
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    load.require_good()
    t.check(counters(daemon)['corruptions'] > 0, f'it is found: {counters(daemon)}')


def test_smart(t):
    daemon = bay(t, spares=('s0',))
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=smart wear=97 temperature=71')
    shown = the_drive(daemon, 'd1')
    t.check(shown['wear'] == 97 and shown['temperature'] == 71, f'the drive tells: {shown}')
    t.until(lambda: 'copy ended' in kinds(daemon), 'it is copied to the spare', 60)
    load.require_good()
    t.check('set degraded' not in kinds(daemon), 'the set was never degraded')
    t.check(the_set(daemon, 'r')['roles'][1]['drive'] == 's0', 'and swapped')
    consistent(t, daemon)


def test_full(t):
    """Space that a drive lacks is the host's to know of, but this one has not even the room any
    more that the set had reserved: it goes, a spare is taken, and the host notices nothing."""
    daemon = bay(t, spares=('s0',))
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=full')
    t.until(lambda: rule_of(daemon)['struck'] > 0, 'writes find no room')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the spare is rebuilt', 60)
    load.require_good()
    t.check('sectors lost' not in kinds(daemon), 'nothing is called lost')
    daemon.sandbay('fault', 'clear')
    at_rest(t, daemon)
    consistent(t, daemon)


def test_readonly(t):
    daemon = bay(t, spares=('s0',))
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=readonly')
    t.until(lambda: 'spare taken' in kinds(daemon), 'a drive that takes no writes goes')
    t.until(lambda: 'rebuild ended' in kinds(daemon), 'the spare is rebuilt', 60)
    load.require_good()
    consistent(t, daemon)


def test_wrong_id(t):
    """A drive that comes back with another size is not the one that went."""
    daemon = bay(t)
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d1 do=pull for=3s')
    t.until(lambda: the_drive(daemon, 'd1')['health'] == 'missing', 'd1 is away')
    add(daemon, 'at=drive:d1 do=wrong.id serial=OTHER blocks=16384')
    t.check(the_drive(daemon, 'd1')['serial'] == 'OTHER', 'it says another serial number')
    t.until(lambda: 'drive identity' in kinds(daemon), 'that is told')
    t.until(lambda: not rule_of(daemon)['active'], 'it comes back')
    time.sleep(2)  # The drives are looked at every second.
    t.check(the_set(daemon, 'r')['health'] == 'degraded', 'it is refused')
    load.require_good()


def test_shelf_loss(t):
    """All drives at once, for a moment: no verdict, and nothing is lost when they return."""
    daemon = bay(t, spares=('s0',))
    at_rest(t, daemon)
    load = attached(t, daemon)
    time.sleep(1)
    load.require_running('before the loss')
    load.end()
    add(daemon, 'at=enclosure:shelf do=shelf.loss for=2s')
    daemon.load('--write', '--verify', '--duration', '1s', '--warm-up', '0s', daemon.url('v'),
                ok=False)  # An honest error.
    t.until(lambda: the_set(daemon, 'r')['running'], 'the set is back', 60)
    t.check('spare taken' not in kinds(daemon), 'no spare is taken')
    at_rest(t, daemon)
    load = attached(t, daemon)
    time.sleep(2)
    load.require_good()
    consistent(t, daemon)


def test_status_of_the_enclosure(t):
    daemon = bay(t)
    load = attached(t, daemon)
    time.sleep(1)
    for fault in ('psu', 'fan', 'temp'):
        add(daemon, f'at=enclosure:shelf do={fault} for=1s')
    text = ' '.join(event['text'] for event in events(daemon) if event['kind'] == 'fault')
    t.check(all(word in text for word in ('psu', 'fan', 'temp')), f'all are told: {text}')
    load.require_good()
    t.check(whole(daemon, 'r'), 'it is status only')


def test_battery_low(t):
    """What the NVRAM holds goes to the drives at once: a cut soon after loses nothing."""
    names = [f'd{i}' for i in range(4)]
    daemon = t.daemon(
        [{'name': 'v', 'raid': 'r', 'size': '12MiB', 'write_cache': False}],
        extra=(drives(names, '24MiB', enclosure='shelf') +
               raid('r', 'raid5', names, journal='nvram') +
               '[nvram]\nsize = "40MiB"\ndurability = "host"\n' + faults()))
    load = attached(t, daemon)
    time.sleep(1)
    add(daemon, 'at=nvram do=battery.low')
    t.check('battery low' in kinds(daemon), 'it is told')
    time.sleep(1)
    daemon.sandbay('fault', 'add', 'at=enclosure:shelf', 'op=write', 'after=30', 'do=power.cut')
    t.until(lambda: not daemon.alive(), 'the power is cut')
    t.check(daemon.process.returncode == -signal.SIGKILL, 'without a word')
    daemon.start()
    t.check('power cut' in kinds(daemon), 'the cut itself is told after the restart')
    t.check('nvram lost' in kinds(daemon), 'the NVRAM lost its content')
    time.sleep(1)
    load.require_good()
    at_rest(t, daemon)
    consistent(t, daemon)


def nvram_damage(t, fault, cuts=4):
    """Damage of the journal at a power cut: told, verified away, and no wrong bytes on a set whose
    volume does not rely on it."""
    names = [f'd{i}' for i in range(4)]
    daemon = t.daemon(
        [{'name': 'v', 'raid': 'r', 'size': '12MiB'}],
        extra=(drives(names, '24MiB', enclosure='shelf') +
               raid('r', 'raid5', names, journal='nvram') + '[nvram]\nsize = "40MiB"\n' +
               faults()))
    load = Load(t, daemon.url('v'), *RATE, '--span', '4MiB')
    for number in range(cuts):
        time.sleep(0.5)
        add(daemon, f'at=nvram event=power.cut do={fault}')
        time.sleep(0.3 * (number % 3))  # What is stale is what there was when the rule was added.
        daemon.sandbay('fault', 'add', 'at=enclosure:shelf', 'op=write', f'after={20 + number}',
                       'loss=none', 'do=power.cut')
        t.until(lambda: not daemon.alive(), 'the power is cut')
        daemon.start()
        t.check(the_set(daemon, 'r')['running'], 'the set runs')
    report = load.end()
    t.check(report['errors'] == 0, f'no error: {report["first_error"]}')
    t.check(report['miscompares'] == 0, f'nothing wrong: {report["first_miscompare"]}')
    at_rest(t, daemon)
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    before = counters(daemon)['mismatches']
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    t.check(counters(daemon)['mismatches'] == before, 'redundancy is valid again')
    return kinds(daemon)


def test_nvram_loss(t):
    told = nvram_damage(t, 'nvram.loss')
    t.check('journal lost' in told or 'nvram lost' in told, f'the loss is told: {set(told)}')


def test_nvram_page(t):
    nvram_damage(t, 'nvram.page')


def test_nvram_stale(t):
    """What the image held at any earlier moment is not taken for what it held last."""
    nvram_damage(t, 'nvram.stale')


def test_nvram_bitrot(t):
    nvram_damage(t, 'nvram.bitrot')


def test_noflush_and_reorder(t):
    """A drive that lies about flushes loses what it promised; redundancy makes up for one."""
    daemon = bay(t, integrity=True)
    at_rest(t, daemon)
    load = attached(t, daemon)
    add(daemon, 'at=drive:d2 do=noflush')
    add(daemon, 'at=drive:d0 do=reorder')
    time.sleep(2)
    t.check(rule_of(daemon)['struck'] > 0, 'flushes were struck')
    load.require_good()


def test_every_word_of_the_file_is_one_of_the_command_line(t):
    """What the file takes the command line takes, and both refuse the same."""
    daemon = bay(t)
    text = daemon.sandbay('fault', 'add', 'at=drive:d0', 'do=explode', ok=False).stdout
    t.check('explode' in text, f'the word is named: {text}')
    try:
        daemon.turn = True
        add(daemon, 'at=drive:d0 do=explode')
    except urllib.error.HTTPError as refusal:
        said = json.load(refusal)['error']['message']
        t.check(said in text, f'the same sentence: {said} / {text}')
    else:
        raise Failed('REST takes what the command line refuses')
    t.check(stale(daemon, 'r') == 0, 'nothing happened')


def test_rules_in_files_and_by_their_ids(t):
    daemon = bay(t)
    at_rest(t, daemon)
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 7 0 1M', '-c', 'flush', daemon.url('v'))
    file = t.path('rules')

    def write(*lines):
        with open(file, 'w', encoding='utf-8') as stream:
            stream.write('\n'.join(lines) + '\n')

    write('# What breaks today.', '', 'at=drive:d1 do=smart  # Soon.', 'at=drive:d7 do=fail')
    error = daemon.sandbay('fault', 'add', '--file', file, ok=False).stdout
    t.check(f'{file}:4: at=drive:d7: unknown drive; drives are: d0' in error, error)
    t.check(not daemon.sandbay_json('fault', 'list')['faults'], 'nothing is added by halves')
    write('id=wait at=drive:d0 op=read origin=host count=1 do=hold',
          'id=bad at=drive:d1 lba=2048+8 do=lse', 'id=off at=drive:d2 enabled=no do=fail')
    daemon.sandbay('fault', 'add', '--file', file)
    kept = t.path('kept')
    daemon.sandbay('fault', 'list', '--file', kept)
    with open(kept, encoding='utf-8') as stream:
        lines = stream.read().splitlines()
    t.check(len(lines) == 3 and lines[2] == 'rule id=off enabled=no at=drive:d2 do=fail', lines)
    daemon.sandbay('fault', 'add', '--file', kept)  # They are there already.
    t.check(len(daemon.sandbay_json('fault', 'list')['faults']) == 3, 'no rule is added twice')

    t.check(the_drive(daemon, 'd1')['unreadable_blocks'] == 8, 'd1 has defects')
    daemon.sandbay('fault', 'heal', '1')  # As at=drive:1 names it.
    error = daemon.sandbay('fault', 'clear', '', ok=False).stdout
    t.check('the value is empty' in error, error)
    t.check(the_drive(daemon, 'd1')['unreadable_blocks'] == 0, 'd1 is healed')
    reader = t.start('qemu-io', '-f', 'raw', '-c', 'read 0 1M', daemon.url('v'))
    t.until(lambda: daemon.sandbay_json('fault', 'show', 'wait')['held'] == 1, 'a read is held')
    done = daemon.sandbay('fault', 'release', 'wait').stdout
    t.check('released 1 operations' in done, done)
    t.check(daemon.sandbay_json('fault', 'show', 'wait')['held'] == 0, 'nothing is held')
    t.check(reader.wait(20) == 0, 'the host has its data')
    daemon.sandbay('fault', 'enable', 'off')
    t.until(lambda: the_set(daemon, 'r')['health'] == 'degraded', 'd2 has failed')
    daemon.sandbay('fault', 'disable', 'off')
    t.check(not daemon.sandbay_json('fault', 'show', 'off')['active'], 'it is over')
    journal = daemon.sandbay_json('fault', 'journal')['firings']
    t.check([f['rule'] for f in journal] == ['bad', 'wait', 'off'], journal)
    t.check(not daemon.sandbay_json('fault', 'journal', '--since', str(journal[-1]['number']))
            ['firings'], 'nothing since')
    places = daemon.sandbay('fault', 'places').stdout.split()
    t.check('drive:d3' in places and 'enclosure:shelf' in places, places)
    t.check('misdirect.write' in daemon.sandbay('fault', 'kinds').stdout, 'kinds')


def test_every_firing_is_an_event_or_counted_in_one(t):
    daemon = bay(t)
    at_rest(t, daemon)
    add(daemon, 'at=drive op=write p=0.5 do=nothing')
    load = attached(t, daemon)
    time.sleep(2)
    load.require_good()

    def logged():
        more = [re.search(r'and (\d+) more like this one', e['text'])
                for e in events(daemon) if e['kind'] == 'fault']
        return sum(1 + (int(count.group(1)) if count else 0) for count in more)

    t.until(lambda: rule_of(daemon)['fired'] == logged(), 'all are logged', 60)
    t.check(logged() > 3, f'{logged()} firings')
    t.check(len([e for e in events(daemon) if e['kind'] == 'fault']) < logged(), 'some are counted')


def test_what_fired_fires_again_by_a_file(t):
    def work(daemon):
        at_rest(t, daemon)
        before = len(daemon.sandbay_json('fault', 'journal')['firings'])
        for i in range(12):
            t.run('qemu-io', '-f', 'raw', '-c', f'write -P {i} {i}M 4k', '-c', 'flush',
                  daemon.url('v'))
            t.run('qemu-io', '-f', 'raw', '-c', f'read -P {i} {i}M 4k', daemon.url('v'))
        return [(f['rule'], f['fault'], f['target'], f['effect'])
                for f in daemon.sandbay_json('fault', 'journal')['firings'][before:]]

    rules = ('id=a at=drive:d0 op=write origin=host p=0.2 do=nothing',
             'id=b at=drive:d0 op=read origin=host p=0.3 do=recovered')
    daemon = bay(t, *rules, level='jbod', count=1)  # An operation of the host is one of the drive.
    first = work(daemon)
    file = t.path('replay')
    daemon.sandbay('fault', 'journal', '--file', file)
    with open(file, encoding='utf-8') as stream:
        lines = stream.read().splitlines()
    t.check(lines[0].startswith('# For [faults] of a daemon with seed = '), lines)
    t.check(first and all('matches=' in line for line in lines[1:]), f'{first} {lines}')
    daemon.terminate()
    again = bay(t, *lines[1:], level='jbod', count=1)
    second = work(again)
    t.check(second == first, f'the same fires again: {first} {second} {lines}')
