"""PDUs that are lost, late or damaged, and connections that break, under foreign and own hosts:
right data or an honest error, and the daemon unharmed.
"""
import os
import time

import harness
import host
from raid_lab import Load, events, faults, write_and_read


def start(t, *rules, **keys):
    return t.daemon([{'name': 'v', 'size': '16MiB', **keys}], extra=faults(*rules))


def rule_of(daemon, name):
    return daemon.sandbay_json('fault', 'show', name)


def test_a_response_that_is_late_and_a_command_that_is_lost(t):
    daemon = start(t)
    one, other = host.Host(t, daemon, 'v'), host.Host(t, daemon, 'v', isid=2, name=host.ME + '2')
    for each in (one, other):
        each.command(host.TEST_UNIT_READY)
    daemon.sandbay('fault', 'add', 'id=late', f'at=session:{host.ME}', 'pdu=scsi-response',
                   'count=1', 'do=pdu.delay', 'latency=1500ms')
    begin = time.monotonic()
    tag = one.start(host.TEST_UNIT_READY)
    other.good(host.read_10(0, 8), 4096)  # Nobody else waits.
    t.check(time.monotonic() - begin < 1, 'the other session is not late')
    t.check(one.finish(tag).good, 'late and good')
    t.check(1.4 < time.monotonic() - begin < 10, 'it was late')
    fired = daemon.sandbay_json('fault', 'journal')['firings'][-1]
    t.check(fired['effect'] == f'scsi-response to {host.ME}', f'{fired}')
    t.check(fired['target'].startswith('conn ') and fired['target'].endswith('.0'), f'{fired}')
    places = daemon.sandbay_json('fault', 'places')['places']
    for place in (f'link:{daemon.portal}', f'session:{host.ME}', 'conn:' + fired['target'][5:]):
        t.check(place in places, f'{place}: {places}')
        daemon.sandbay('fault', 'add', 'id=now', f'at={place}', 'do=nothing')
        one.good(host.read_10(0, 8), 4096)
        t.check(rule_of(daemon, 'now')['struck'] > 0, f'{place}: counts')
        daemon.sandbay('fault', 'clear', 'now')
    for rule, said in (('at=link:127.0.0.1:1 do=drop', 'unknown portal'),
                       ('at=conn:999.0 do=drop', 'unknown connection'),
                       ('at=link do=drop pdu=r2d', 'pdu=r2d: nop-out'),
                       ('at=lun do=drop', 'do=drop: at=session:INITIATOR, at=conn:TSIH.CID and')):
        text = daemon.sandbay('fault', 'add', *rule.split(), ok=False).stdout
        t.check(said in text and len(text.splitlines()) == 1, f'{rule}: {text}')


# Our initiator, with digests and two connections, which verifies what it reads.
def load(t, daemon, *words, duration='2s'):
    done = t.run(t.program('sandbay'), 'load', '--verify', '--write', '--queue-depth', '8',
                 '--rate', '400', '--duration', duration, '--warm-up', '0s', '--connections', '2',
                 '--key', 'HeaderDigest=CRC32C', '--key', 'DataDigest=CRC32C', *words,
                 daemon.url('v'), ok=None)
    return done.returncode == 0, done.stdout


def struck_by(t, daemon, rule, work):
    """The result of `work` under a rule that strikes."""
    daemon.sandbay('fault', 'add', 'id=now', *rule.split())
    result = work()
    t.check(rule_of(daemon, 'now')['struck'] > 0, f'{rule}: nothing was struck')
    daemon.sandbay('fault', 'clear', 'now')
    return result


def foreign_under(t, daemon, place, rules):
    """libiscsi: right data or an error, and afterwards all is well."""
    for number, rule in enumerate(rules, 1):
        served, _ = struck_by(t, daemon, f'{place} {rule}',
                              lambda: write_and_read(t, daemon.url('v'), number))
        t.say(f'{rule}: {"right data" if served else "an error"}')
        well, _ = write_and_read(t, daemon.url('v'), 100 + number)
        t.check(well, f'{rule}: all is well afterwards')


# Behind the login's own commands, which each connection has.
OWN = (('pdu=data-in every=40 do=digest.data', True),
       ('pdu=scsi-command every=40 do=digest.data', True),
       ('dir=in every=100 do=digest.header', True),
       ('dir=out every=100 do=digest.header', True),
       ('dir=out every=100 do=pdu.drop', True),
       ('pdu=scsi-command every=50 do=drop', True),
       ('pdu=data-in every=50 do=drop how=close', True),
       ('do=pdu.delay latency=1ms..5ms', True),
       ('dir=out every=100 do=pdu.dup', True),
       ('dir=in every=100 do=pdu.dup', True),
       ('every=150 do=pdu.truncate', True),
       ('every=100 do=statsn.gap', True))
LARGE = ('--block-size', '256KiB', '--key', 'MaxRecvDataSegmentLength=16384', '--key',
         'InitialR2T=Yes', '--key', 'ImmediateData=No')
OWN_LARGE = (('every=40 do=datasn.gap', None),  # A read may lose its connection too often.
             ('every=40 do=r2tsn.gap', False))  # The write waits for an R2T that never comes.
FOREIGN = ('pdu=scsi-command after=5 count=1 do=drop',
           'pdu=data-in after=6 count=1 do=drop',
           'pdu=r2t,scsi-response after=4 count=1 do=drop how=close',
           'every=3 do=pdu.delay latency=10ms',
           'pdu=scsi-command after=3 do=pdu.dup',
           'pdu=scsi-response,data-in after=6 count=1 do=pdu.truncate')


def test_initiators_under_each_fault_of_a_connection(t):
    daemon = start(t)
    for rules, words in ((OWN, ('--block-size', '4KiB')), (OWN_LARGE, LARGE)):
        for rule, expected in rules:
            served, output = struck_by(t, daemon, f'at=link after=40 {rule}',
                                       lambda: load(t, daemon, *words))
            t.check(' 0 wrong' in output, f'{rule}: {output}')
            t.check(expected in (None, served), f'{rule}: {output}')
    foreign_under(t, daemon, 'at=link', FOREIGN)
    t.check(daemon.terminate() == 0, 'the daemon ends well')


# Residuals say that bytes are missing: an error is honest.
OWN_SESSION = (('opcode=0x28,0x2a,0x88,0x8a every=50 do=residual', False),
               ('every=50 do=residual how=over', True),
               ('every=100 do=async how=logout wait=1s', True),
               ('every=100 do=async how=connection', True),
               ('every=100 do=async how=session', True),
               ('every=100 do=async how=negotiation', True),
               ('every=150 do=window.close latency=300ms', True),
               ('every=10 do=response.delay latency=1ms..50ms', True),
               ('do=r2t.withhold latency=1ms..20ms', True),
               ('do=r2t.small bytes=3000', True),
               ('do=r2t.disorder', True))
FOREIGN_SESSION = ('opcode=0x2a do=residual how=over',
                   'after=6 count=1 do=async how=logout',
                   'after=6 count=1 do=async how=connection',
                   'after=6 count=1 do=async how=session',
                   'after=6 count=1 do=async how=negotiation',
                   'do=window.close latency=200ms',
                   'do=r2t.withhold latency=200ms',
                   'do=r2t.small bytes=3000',
                   'do=r2t.disorder')


def test_initiators_under_each_fault_of_a_session(t):
    daemon = start(t)
    for rule, expected in OWN_SESSION:
        after = '' if 'r2t' in rule else 'after=40 '
        served, output = struck_by(t, daemon, f'at=session:* {after}{rule}',
                                   lambda: load(t, daemon, *LARGE, duration='1s'))
        t.check(' 0 wrong' in output, f'{rule}: {output}')
        t.check(served == expected, f'{rule}: {output}')
    foreign_under(t, daemon, 'at=session:*', FOREIGN_SESSION)
    for rule in ('do=nego.odd', 'do=counter.near.wrap'):
        served, output = struck_by(t, daemon, f'at=link {rule}',
                                   lambda: load(t, daemon, '--block-size', '16KiB'))
        t.check(' 0 wrong' in output, f'{rule}: {output}')
        t.check(served, f'{rule}: {output}')
        served, output = struck_by(t, daemon, f'at=link {rule}',
                                   lambda: write_and_read(t, daemon.url('v'), 7))
        # libiscsi does not know text that goes on in the next PDU.
        t.check(served != ('odd' in rule), f'{rule}: {output}')
    t.check(daemon.terminate() == 0, 'the daemon ends well')


# Two minutes are twelve seconds here, longer than any patience that is set, unless the environment
# says otherwise.
SILENCE = int(os.environ.get('SANDBAY_E2E_SILENCE', '12'))


def test_silence_and_then_an_answer(t):
    daemon = start(t, 'id=silent at=session:*-me pdu=scsi-response,data-in count=1 event=then '
                   f'do=pdu.delay latency={SILENCE}s')
    one = host.Host(t, daemon, 'v', seconds=SILENCE + 20)
    one.command(host.TEST_UNIT_READY)
    one.good(host.write_10(0, 8), data=b'\x05' * 4096)
    daemon.sandbay('fault', 'add', 'at=lun:v', 'opcode=0x28', 'count=1', 'do=nothing',
                   'then=rule:silent')
    begin = time.monotonic()
    for _ in range(2):  # The first may be answered before the rule is armed.
        t.check(one.good(host.read_10(0, 8), 4096) == b'\x05' * 4096, 'the answer is right')
    waited = time.monotonic() - begin
    t.check(SILENCE - 1 < waited < SILENCE + 8, 'it was silent')
    t.say(f'silent for {waited:.1f} s, then right')
    t.check(any('fault silent fired: pdu.delay, data-in to ' in event['text']
                for event in events(daemon)), 'an event says so')


# A command whose status never comes is out of the way when it has been aborted, and its data stay
# as its end left them.
def test_answers_that_are_withheld(t):
    daemon = start(t)
    one = host.Host(t, daemon, 'v')
    one.command(host.TEST_UNIT_READY)
    one.good(host.write_10(0, 8), data=b'\x01' * 4096)

    def rule(text):
        daemon.sandbay('fault', 'clear')
        daemon.sandbay('fault', 'add', 'id=now', f'at=session:{host.ME}', *text.split())

    rule('opcode=0x2a count=1 do=response.drop')
    tag = one.start(host.write_10(0, 8), data=b'\x02' * 4096)
    t.until(lambda: rule_of(daemon, 'now')['struck'] == 1, 'the status is withheld')
    one.ping()  # Nothing else waits.
    t.check(not one.waiting.get(tag), 'no status came')
    t.check(one.manage(host.ABORT_TASK, task=tag, ref_cmd_sn=one.cmd_sn - 1) == host.COMPLETE,
            'it is out of the way')
    one.good(host.write_10(0, 8), data=b'\x03' * 4096)
    time.sleep(0.2)
    t.check(one.good(host.read_10(0, 8), 4096) == b'\x03' * 4096, 'nothing came later')

    rule('opcode=0x28 count=1 do=response.delay latency=500ms')
    begin = time.monotonic()
    one.good(host.read_10(0, 8), 4096)
    t.check(time.monotonic() - begin >= 0.5, 'late')
    rule('do=tmf.reject count=1')
    t.check(one.manage(host.LOGICAL_UNIT_RESET) == 255, 'function rejected')
    rule('do=tmf.slow latency=500ms count=1')
    begin = time.monotonic()
    t.check(one.manage(host.LOGICAL_UNIT_RESET) == host.COMPLETE, 'done')
    t.check(time.monotonic() - begin >= 0.5, 'late')
    one.command(host.TEST_UNIT_READY)  # Reports the reset.
    rule('do=tmf.lie count=1')
    t.check(one.manage(host.LOGICAL_UNIT_RESET) == host.COMPLETE, 'or so it says')
    rule('do=nop.ignore count=1')
    one.peer.send(host.wire.nop_out(one.tag, one.cmd_sn, data=b'?'))
    one.tag += 1
    t.until(lambda: rule_of(daemon, 'now')['struck'] == 1, 'the ping is ignored')
    one.ping()


def test_logins_that_are_refused_sent_on_and_slow(t):
    daemon = t.daemon([{'name': 'v', 'size': '16MiB'}], portals=('127.0.0.1', '127.0.0.1'),
                      extra=faults())
    first, second = daemon.portals

    def rule(text):
        daemon.sandbay('fault', 'clear')
        daemon.sandbay('fault', 'add', 'id=now', f'at=link:{first}', *text.split())

    for status in ('0x0201', '0x0203', '0x0206', '0x0301'):
        rule(f'status={status} do=login.reject')
        one = host.wire.Peer(daemon.address())
        seen = one.login(harness.NAME_PREFIX + 'v', host.ME)
        t.check(seen == int(status, 16), f'status {status}: {seen:#06x}')
        one.close()
    output = t.run('iscsi-inq', daemon.url('v'), ok=None).stdout
    t.check('Service unavailable' in output or 'unavailable' in output.lower(), output)
    rule(f'do=redirect address={second} initiator=*')
    done = t.run('qemu-io', '-f', 'raw', '-c', 'write -P 9 0 64k', '-c', 'read -P 9 0 64k',
                 daemon.url('v')).stdout
    t.check('read 65536/65536' in done and 'verification failed' not in done, done)
    t.check(rule_of(daemon, 'now')['struck'] >= 1, 'it was sent on')
    rule('do=login.stall count=1')
    one = host.wire.Peer(daemon.address(), 1)
    try:
        one.login(harness.NAME_PREFIX + 'v', host.ME)
        t.check(False, 'a stalled login was answered')
    except TimeoutError:
        one.close()
    rule('do=login.slow latency=700ms')
    begin = time.monotonic()
    t.run('iscsi-inq', daemon.url('v'))
    t.check(time.monotonic() - begin >= 0.7, 'slow')
    fired = daemon.sandbay_json('fault', 'journal')['firings'][-1]
    t.check(fired['target'] == f'link {first}', f'{fired}')


# Links that are slow, torn and out of order serve; behind the login, as above.
LINKS = (('do=rate bandwidth=40MB/s', LARGE),
         ('every=10 do=fragment bytes=100', ('--block-size', '4KiB')),
         ('every=50 do=corrupt', ('--block-size', '4KiB')),
         ('every=100 do=stall-window latency=200ms', ('--block-size', '4KiB')),
         ('do=reorder.connections', ('--block-size', '4KiB')))


def test_initiators_over_links_that_are_bad(t):
    daemon = start(t)
    for rule, words in LINKS:
        served, output = struck_by(t, daemon, f'at=link after=40 {rule}',
                                   lambda: load(t, daemon, *words, duration='1s'))
        t.check(served and ' 0 wrong' in output, f'{rule}: {output}')
    for number, rule in enumerate(('after=10 do=rate bandwidth=5MB/s', 'do=fragment',
                                   'pdu=scsi-command after=5 count=1 do=stall-window latency=1s',
                                   'do=reorder.connections latency=0s..5ms'), 1):
        served, output = struck_by(t, daemon, f'at=link {rule}',
                                   lambda: write_and_read(t, daemon.url('v'), number))
        t.check(served, f'{rule}: {output}')
    # Below the digest it is found; above it only the host's own check can.
    rule = 'at=link pdu=data-in after=40 every=40 do=corrupt how=above'
    served, output = struck_by(t, daemon, rule,
                               lambda: load(t, daemon, '--block-size', '4KiB', duration='1s'))
    t.check(not served and ' 0 wrong' not in output, output)
    t.check(daemon.terminate() == 0, 'the daemon ends well')


# Nothing comes through one of two connections any more: the initiator notices, and goes on.
def test_connections_that_are_silent(t):
    kinds = ('drop how=silence', 'half-open', 'half-open how=out')
    daemon = t.daemon([{'name': f'v{i}', 'size': '16MiB'} for i in range(len(kinds))],
                      extra=faults())
    loads = []
    for number, kind in enumerate(kinds):
        name = f'{host.ME}-{number}'
        daemon.sandbay('fault', 'add', f'id=r{number}', f'at=session:{name}', 'after=200',
                       'count=1', *f'do={kind}'.split())
        loads.append(Load(t, daemon.url(f'v{number}'), '--queue-depth', '8', '--rate', '400',
                          '--connections', '2', '--initiator-name', name))
    time.sleep(18)
    for number, each in enumerate(loads):
        report = each.require_good()
        t.check(rule_of(daemon, f'r{number}')['struck'] == 1, f'{kinds[number]}: did not strike')
        t.check(report['connections_lost'] >= 1, f'{kinds[number]}: a connection was given up')
    t.check(daemon.terminate() == 0, 'the daemon ends well')


def test_a_path_that_flaps_under_load_over_two_portals(t):
    daemon = t.daemon([{'name': 'v', 'size': '16MiB'}], portals=('127.0.0.1', '127.0.0.1'),
                      extra=faults())
    first, second = daemon.portals
    url = daemon.url('v').replace(first, f'{first},{second}')

    def both():
        done = t.run(t.program('sandbay'), 'load', '--verify', '--write', '--queue-depth', '8',
                     '--duration', '8s', '--warm-up', '0s', '--connections', '2', url, ok=None)
        return done.returncode == 0, done.stdout

    served, output = struck_by(t, daemon, f'at=link:{second} do=flap up=1500ms down=500ms', both)
    t.check(served and ' 0 wrong' in output, output)
    t.say(output)


# An address that answers no attempt to connect, and then does.
def test_a_black_hole(t):
    daemon = start(t, 'id=hole at=link count=1 for=2500ms do=blackhole')
    begin = time.monotonic()
    served, output = write_and_read(t, daemon.url('v'), 5)
    if not served:  # libiscsi tries again by itself, or does not.
        served, output = write_and_read(t, daemon.url('v'), 5)
    t.check(served, output)
    t.check(2 < time.monotonic() - begin < 15, 'it did not answer for a time')


# Rules that have gone hold up nobody.
def test_cleared_rules_let_go(t):
    daemon = start(t)
    one = host.Host(t, daemon, 'v')
    one.command(host.TEST_UNIT_READY)
    for rule in ('at=session do=response.delay latency=1h',
                 'at=link pdu=scsi-command do=pdu.delay latency=1h',
                 'at=link pdu=scsi-response do=pdu.delay latency=1h',
                 'at=link do=rate bandwidth=1B/s'):
        daemon.sandbay('fault', 'add', 'id=now', *rule.split())
        tag = one.start(host.TEST_UNIT_READY)
        t.until(lambda: rule_of(daemon, 'now')['struck'] > 0, f'{rule} strikes')
        daemon.sandbay('fault', 'clear', 'now')
        begin = time.monotonic()
        t.check(one.finish(tag).good, f'{rule}: it goes on')
        t.check(time.monotonic() - begin < 3, f'{rule}: soon')
    daemon.sandbay('fault', 'add', 'id=now', 'at=link', 'for=1h', 'do=blackhole')
    try:
        host.wire.Peer(daemon.address(), 2).receive_exactly(1)
        t.check(False, 'the first is reset')
    except (OSError, EOFError):
        pass
    daemon.sandbay('fault', 'clear', 'now')
    time.sleep(1.5)
    host.Host(t, daemon, 'v', isid=3).command(host.TEST_UNIT_READY)
