"""Units that answer as rules say: one host by hand for the words of each answer, foreign initiators
for what becomes of their data.
"""
import re
import time

import host
from raid_lab import events, faults, write_and_read

TASK_SET_FULL = 0x28
OTHER = 'iqn.2026-11.org.sandbay:e2e-other'


def start(t, *rules, names=('a', 'b'), size='16MiB'):
    """Volumes on executors of their own."""
    return t.daemon([{'name': name, 'size': size} for name in names], extra=faults(*rules))


def rule_of(daemon, number):
    return daemon.sandbay_json('fault', 'show', number)


def test_answers_by_rule(t):
    daemon = start(t, 'id=file at=lun:b opcode=0x35 do=busy')
    a, b = host.Host(t, daemon, 'a'), host.Host(t, daemon, 'b')
    other = host.Host(t, daemon, 'a', isid=2, name=OTHER)
    read = host.read_10(60, 8)
    for each in (a, b, other):
        each.command(host.TEST_UNIT_READY)  # Has its POWER ON.
        each.good(read, 4096)

    def struck(rule, cdb=read, by=a, data=b''):
        daemon.sandbay('fault', 'add', 'id=now', 'at=lun:a', *rule.split())
        reply = by.command(cdb, 0 if data or cdb is host.TEST_UNIT_READY else 4096, data=data)
        counted = rule_of(daemon, 'now')
        t.check(counted['struck'] == 1, f'{rule}: {counted}')
        b.good(read, 4096)
        daemon.sandbay('fault', 'clear', 'now')
        by.command(host.TEST_UNIT_READY)
        by.good(read, 4096)
        return reply

    reply = struck('op=read lba=64+8 do=check key=3 code=11/00')
    t.check((reply.key, reply.additional) == (3, 0x1100), f'{reply}')
    reply = struck('opcode=0x28 initiator=*-me do=aborted')
    t.check((reply.key, reply.additional) == (0xb, 0), f'{reply}')
    reply = struck('do=notready', host.TEST_UNIT_READY)
    t.check((reply.key, reply.additional) == (2, 0x0401), f'{reply}')
    reply = struck('do=ua code=2a/09 initiator=*-other', by=other)
    t.check((reply.key, reply.additional) == (6, 0x2a09), f'{reply}')
    reply = struck('do=lun.vanish')
    t.check((reply.key, reply.additional) == (5, 0x2500), f'{reply}')
    for word, additional in (('transition', 0x040a), ('standby', 0x040b), ('unavailable', 0x040c)):
        reply = struck(f'do=alua.state how={word}', host.TEST_UNIT_READY)
        t.check((reply.key, reply.additional) == (2, additional), f'{word}: {reply}')
    for word, status in (('busy', host.BUSY), ('taskfull', TASK_SET_FULL),
                         ('reservation.conflict', host.RESERVATION_CONFLICT)):
        reply = struck(f'op=read do={word}')
        t.check(reply.status == status and reply.key == 0, f'{word}: {reply}')
    # A write of many PDUs that is struck changes nothing, and the session stays.
    data = b'\x07' * 1048576
    a.good(host.write_10(0, 2048), data=data)
    reply = struck('op=write do=check key=4 code=44/00', host.write_10(0, 2048),
                   data=b'\x08' * 1048576)
    t.check((reply.key, reply.additional) == (4, 0x4400), f'{reply}')
    t.check(a.good(host.read_10(0, 2048), 1048576) == data, 'it is as it was')
    # INQUIRY is served, and a rule of the file holds from the start.
    daemon.sandbay('fault', 'add', 'id=all', 'at=lun:a', 'do=busy')
    t.check(a.command(host.TEST_UNIT_READY).status == host.BUSY, 'busy')
    a.good(host.inquiry(), 255)
    flush = bytes([0x35]) + bytes(9)
    t.check(b.command(flush).status == host.BUSY, 'the rule of the file')
    t.check(any(event['kind'] == 'fault' and 'lun b: fault file fired: busy' in event['text']
                for event in events(daemon)), 'an event says so')
    fired = daemon.sandbay_json('fault', 'journal')['firings'][-1]
    t.check((fired['target'], fired['effect']) ==
            ('lun b', f'SYNCHRONIZE CACHE(10) from {host.ME}'), f'{fired}')


def test_places_and_names(t):
    daemon = start(t, names=('mail', 'web'))
    places = daemon.sandbay_json('fault', 'places')['places']
    t.check('lun:mail' in places and 'lun:web' in places, f'{places}')
    for rule, said in (('at=lun:mial do=busy', 'unknown volume; did you mean at=lun:mail?'),
                       ('at=lun:database* do=busy', 'unknown volume; sandbay fault places lists'),
                       ('at=lun do=ua code=2a/0a', 'do=check key=6 reports any other'),
                       ('at=lun:mail do=fail', 'do=fail: at=drive and')):
        text = daemon.sandbay('fault', 'add', *rule.split(), ok=False).stdout
        t.check(said in text and len(text.splitlines()) == 1, f'{rule}: {text}')
    t.check(not daemon.sandbay_json('fault', 'list')['faults'], 'nothing was added')
    daemon.sandbay('volume', 'create', 'c', '--size', '16MiB', '--memory', '--initiator', '*')
    daemon.sandbay('fault', 'add', 'id=d', 'at=lun:c', 'do=busy')
    daemon.sandbay('volume', 'rename', 'c', 'd')
    one = host.Host(t, daemon, 'c')
    one.command(host.TEST_UNIT_READY)
    one.good(host.read_10(0, 1), 512)
    daemon.sandbay('fault', 'add', 'id=e', 'at=lun:?', 'do=busy')
    t.check(one.command(host.read_10(0, 1), 512).status == host.BUSY, 'by its new name')
    t.check(rule_of(daemon, 'd')['struck'] == 0, 'not by the old one')


# Data are right, or libiscsi says an honest error.
def test_a_foreign_initiator_under_each_answer(t):
    daemon = start(t, names=('a',))
    url = daemon.url('a')

    for number, (rule, served) in enumerate((
            ('op=read,write count=3 do=busy', True),
            ('op=read,write count=3 do=taskfull', True),
            ('op=read,write count=2 do=ua code=2a/09', True),
            ('op=read,write count=2 do=ua code=29/00', True),
            ('op=read do=lun.vanish', False),
            ('op=write do=alua.state how=standby', False),
            ('op=write do=reservation.conflict', False),
            ('op=read lba=2048+1 do=check key=3 code=11/00', False),
            ('op=write do=check key=7 code=27/00', False),
            ('op=read do=aborted', False)), 1):
        daemon.sandbay('fault', 'add', 'id=now', 'at=lun:a', *rule.split())
        done, output = write_and_read(t, url, number)
        t.check(rule_of(daemon, 'now')['struck'] > 0, f'{rule}: nothing was struck')
        t.check(done == served, f'{rule}: {output}')
        daemon.sandbay('fault', 'clear', 'now')
        t.check(write_and_read(t, url, 100 + number)[0], f'{rule}: all is well afterwards')


# Eight sessions, and a task set that is full from nine commands on.
def test_a_storm_of_task_set_full(t):
    daemon = start(t, 'id=full at=lun:a depth=9.. do=taskfull', names=('a',))
    output = t.run(t.program('sandbay'), 'load', '--verify', '--write', '--sessions', '8',
                   '--queue-depth', '8', '--duration', '3s', daemon.url('a'), ok=None).stdout
    t.check(' 0 wrong' in output, output)
    counted = rule_of(daemon, 'full')
    t.check(counted['struck'] > 1000, f'{counted}')
    # A command that gets it a hundred times in a row is given up: an honest error.
    gave_up = re.search(r'errors (\d+), the first: .* status 28h', output)
    errors = int(gave_up.group(1)) if gave_up else 0
    t.check(errors < counted['struck'] / 1000, f'{errors} errors: {output}')
    t.say(f'{counted["struck"]} commands got TASK SET FULL, {errors} were given up')


# A volume behaves as a device under dm-flakey, dm-dust, dm-delay and dm-error.
def test_presets(t):
    daemon = start(t, names=('a',))
    one = host.Host(t, daemon, 'a')
    one.command(host.TEST_UNIT_READY)
    rules = daemon.sandbay('fault', 'preset', 'flaky', 'a', '--show').stdout
    t.check(rules.startswith('id=flaky.a at=lun:a ') and 'up=10s down=2s' in rules, rules)
    t.check(not daemon.sandbay_json('fault', 'list')['faults'], 'they are shown alone')

    daemon.sandbay('fault', 'preset', 'dust', 'a', '--blocks', '8-9,12')
    t.check(one.read(8, 1).key == 3 and one.read(12, 1).key == 3, 'bad blocks')
    one.good(host.read_10(10, 2), 1024)
    one.good(host.write_10(8, 1), data=b'\x07' * 512)
    t.until(lambda: one.read(8, 1).good, 'what is written can be read')
    t.check(one.read(8, 1).data == b'\x07' * 512 and one.read(9, 1).key == 3, 'each by itself')
    daemon.sandbay('fault', 'clear')

    daemon.sandbay('fault', 'preset', 'delay', 'a', '--read', '300ms')
    begin = time.monotonic()
    one.good(host.write_10(0, 1), data=b'\x01' * 512)
    t.check(time.monotonic() - begin < 0.3, 'writes are not late')
    one.good(host.read_10(0, 1), 512)
    t.check(time.monotonic() - begin >= 0.3, 'reads are')
    daemon.sandbay('fault', 'clear')

    daemon.sandbay('fault', 'preset', 'flaky', 'a', '--up', '300ms', '--down', '300ms',
                   '--drop-writes')
    for value in range(1, 100):
        one.good(host.write_10(0, 1), data=bytes([value]) * 512)
        if one.good(host.read_10(0, 1), 512) != bytes([value]) * 512:
            break
        time.sleep(0.02)
    t.check(rule_of(daemon, 'flaky.a')['struck'] == 1, 'a write was lost, and only that')
    daemon.sandbay('fault', 'clear')

    daemon.sandbay('fault', 'preset', 'error', 'a')
    t.check(one.read(0, 1).key == 4 and one.write(0, b'\x01' * 512).key == 4, 'all fails')
    t.check(one.command(host.TEST_UNIT_READY).good, 'all that moves data')
    for words, said in ((('dust', 'a', '--blocks', '9-8'), 'block numbers such as'),
                        (('delay', 'a'), '--read, --write or --flush'),
                        (('flaky', 'a', '--up', 'soon'), 'up=soon'),
                        (('error', 'b'), 'at=lun:b: unknown volume')):
        done = daemon.sandbay('fault', 'preset', *words, ok=False)
        t.check(said in done.stdout, f'{words}: {done.stdout}')
