"""SANITIZE: over a kill -9 of the daemon, and as sg_sanitize asks for it."""
import struct
import time

import host
import sg
from raid_lab import drives, faults, kinds, raid
from test_pool import pool

NOT_READY, MEDIUM_ERROR, UNIT_ATTENTION = 2, 3, 6
IN_PROGRESS, FAILED = 0x041b, 0x3103
OVERWRITE, BLOCK_ERASE, EXIT, AUSE, IMMED = 1, 2, 0x1f, 0x20, 0x80
MIB = 1 << 20
SIZE = 24  # MiB. A drive needs a while for each.
SLOWLY = 'at=drive:d0 op=write length=128.. do=slow latency=50ms'


def sanitize(flags, length=0):
    return struct.pack('>BB5xHx', 0x48, flags, length)


def overwrite(one, pattern, flags=IMMED):
    data = struct.pack('>BBH', 1, 0, len(pattern)) + pattern
    return one.command(sanitize(flags | OVERWRITE, len(data)), data=data)


def slow_volume(t):
    return t.daemon([{'name': 'v', 'raid': 'r', 'size': f'{SIZE}MiB'}],
                    extra=drives(['d0'], '64MiB') + raid('r', 'jbod', ['d0']) +
                    faults(SLOWLY))


def login(t, daemon, name=host.ME):
    one = host.Host(t, daemon, 'v', name=name)
    attentions(one)
    return one


def attentions(one):
    """All that the unit has to tell, ready or not."""
    while one.command(host.TEST_UNIT_READY).key == UNIT_ATTENTION:
        pass


def state(one):
    return one.command(host.TEST_UNIT_READY)


def progress(one):
    data = one.good(bytes([3, 0, 0, 0, 252, 0]), 252)
    return struct.unpack_from('>H', data, 16)[0] / 65536 if data[15] & 0x80 else None


def ended(one):
    reply = state(one)
    return reply.good or (reply.key, reply.additional) != (NOT_READY, IN_PROGRESS)


def test_overwrite_goes_on_after_kill_9(t):
    """A start goes on where the daemon was ten seconds before its end, or nearer."""
    daemon = slow_volume(t)
    one = login(t, daemon)
    one.write(0, b'secret! ' * 64)
    one.write((SIZE - 1) * 2048, b'secret! ' * 64)
    pattern = bytes(range(100, 164))
    overwrite(one, pattern)
    reply = state(one)
    t.check((reply.key, reply.additional) == (NOT_READY, IN_PROGRESS), repr(reply))
    t.until(lambda: progress(one) > 0.1, 'it gets on')
    shown = daemon.sandbay('volume', 'show', 'v').stdout
    t.check('overwrite, ' in shown, shown)
    time.sleep(0.5)
    daemon.kill()
    daemon.start()
    one = login(t, daemon)
    reply = state(one)
    t.check((reply.key, reply.additional) == (NOT_READY, IN_PROGRESS), repr(reply))
    reply = one.command(host.read_10(0, 1), 512)
    t.check((reply.key, reply.additional) == (NOT_READY, IN_PROGRESS), repr(reply))
    t.until(lambda: ended(one), 'it ends', 60)
    t.check(state(one).good, repr(state(one)))
    for mib in range(SIZE):
        t.check(one.good(host.read_10(mib * 2048, 2048), MIB) == pattern * (MIB // 64),
                f'MiB {mib} is overwritten')
    t.check('sanitize started' in kinds(daemon) and 'sanitize ended' in kinds(daemon),
            f'events: {kinds(daemon)}')
    one.close()


def test_it_is_alone(t):
    """Other hosts are turned away, and no reset ends it."""
    daemon = slow_volume(t)
    one, two = login(t, daemon), login(t, daemon, name=f'{host.ME}-two')
    t.check(overwrite(one, b'x' * 512).good, 'it begins')
    reply = two.command(host.write_10(5, 1), data=bytes(512))
    t.check((reply.key, reply.additional) == (NOT_READY, IN_PROGRESS), repr(reply))
    t.check(two.command(host.inquiry(), 255).good, 'INQUIRY is served')
    for function in (host.LOGICAL_UNIT_RESET, host.WARM_RESET):
        one.manage(function)
        attentions(two)
        t.check(not ended(two), 'a reset does not end it')
    t.until(lambda: ended(two), 'it ends', 60)
    t.check(two.read(5, 1).data == b'x' * 512, 'and has overwritten all')


def test_a_failure_stays(t):
    """Over a restart, too, until EXIT FAILURE MODE takes it back, which AUSE allows, or another
    operation ends."""
    daemon = t.daemon([{'name': 'v', 'size': '96MiB', 'thin': True}],
                      extra=drives(['d0'], '64MiB') + raid('r', 'jbod', ['d0']) + pool())
    one = login(t, daemon)
    one.write(0, b'y' * 512)
    for flags in (AUSE, 0):
        reply = overwrite(one, b'x' * 512, flags)
        t.check((reply.key, reply.additional) == (MEDIUM_ERROR, FAILED), repr(reply))
        t.check(kinds(daemon)[-1] == 'sanitize failed', f'events: {kinds(daemon)}')
        t.check('overwrite has failed' in daemon.sandbay('volume', 'show', 'v').stdout, 'it shows')
        daemon.kill()
        daemon.start()
        one = login(t, daemon)
        reply = one.command(host.read_10(0, 1), 512)
        t.check((reply.key, reply.additional) == (MEDIUM_ERROR, FAILED), repr(reply))
        reply = one.command(sanitize(EXIT))
        t.check(reply.good == bool(flags), repr(reply))
    t.check(one.command(sanitize(BLOCK_ERASE)).good, 'another operation ends the failure')
    t.check(one.read(0, 1).data == bytes(512), 'and leaves nothing')
    t.check(not daemon.sandbay_json('volume', 'show', 'v').get('sanitize'), 'it is over')


def test_sg_sanitize(t):
    daemon = t.daemon([{'name': 'v', 'size': '32MiB'}])
    one = login(t, daemon)
    device = sg.Device(t, one)
    one.write(100, b'secret! ' * 64)
    device.run('sg_sanitize', '--block', '--quick', '--wait')
    t.check(one.read(100, 1).data == bytes(512), 'a block erase leaves zeros')
    with open(t.path('pattern'), 'wb') as stream:
        stream.write(b'once and for all')
    device.run('sg_sanitize', '--overwrite', '--quick', '--wait', '--count=2',
               f'--pattern={t.path("pattern")}')
    t.check(one.read(100, 1).data == b'once and for all' * 32, 'the pattern is everywhere')
    text = device.run('sg_opcodes')
    for words in ('Sanitize, overwrite', 'Sanitize, block erase', 'Sanitize, exit failure mode'):
        t.check(words in text, text)
    t.check('WABEREQ=1' in device.run('sg_vpd', '--page=bdc').replace(' ', ''), 'B1h has WABEREQ')
    one.close()
