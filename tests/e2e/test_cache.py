"""The controller's cache in a running daemon: what was acknowledged is on the drives in the end,
through kills, power cuts, failures of drives and of NVRAM; and where it is not, that is told.

Drives that can break keep what is not flushed in the daemon's memory, so a kill loses it: what
comes back then was in NVRAM.
"""
import os
import signal
import struct
import time

import host
from harness import Failed
from host import Host
from raid_lab import Load, drives, events, faults, image, kinds, raid, require_same, the_set, write

# Nothing goes to the drives by itself before long.
LAZY = '[cache]\nmemory = "32MiB"\nnvram = "18MiB"\nidle_flush = "1h"\nage_limit = "1h"\n'
# As good as a drive, so that hosts that flush leave it there.
NVRAM = '[nvram]\nsize = "24MiB"\npower_loss_only_emulated = true\n'
RATE = ('--queue-depth', '8', '--rate', '1500')


def bay(t, nvram=NVRAM, cache=LAZY, breakable=True, volumes=('v',), reactors=0, **keys):
    names = [f'd{i}' for i in range(4)]
    return t.daemon(
        [{'name': name, 'raid': 'r', 'size': '12MiB', **keys} for name in volumes],
        extra=(drives(names, '32MiB', enclosure='shelf') +
               raid('r', 'raid5', names, journal='4MiB') + nvram + cache +
               (faults(seed=3) if breakable else '')),
        reactors=reactors)


def cache_of(daemon):
    return daemon.sandbay_json('cache', 'show')


def set_of(daemon):
    return cache_of(daemon)['sets'][0]


def counters_of(daemon, volume='v'):
    return next(v for v in cache_of(daemon)['volumes'] if v['name'] == volume)['counters']


def put(t, daemon, data, volume='v'):
    """Has it in the NVRAM alone. The first writes to a set go through, until the metadata say that
    it has some there.
    """
    def there():
        write(t, daemon, data, volume)
        return set_of(daemon)['dirty'] > 0
    t.until(there, 'it is in the NVRAM')


def add(daemon, rule):
    daemon.sandbay('fault', 'add', *rule.split())


def cut(t, daemon, *words):
    daemon.sandbay('fault', 'add', 'at=enclosure:shelf', *words, 'do=power.cut', ok=None)
    require_cut(t, daemon)


def require_cut(t, daemon):
    t.until(lambda: not daemon.alive(), 'the power is cut')
    t.check(daemon.process.returncode == -signal.SIGKILL, 'without a word')


def restart(t, daemon):
    """The daemon as after a kill; how long it took to be ready."""
    before = time.monotonic()
    daemon.start()
    return time.monotonic() - before


def replace(daemon, old, new):
    """Another text in its configuration file."""
    with open(daemon.arguments[1], encoding='utf-8') as stream:
        text = stream.read()
    if old not in text:
        raise Failed(f'"{old}" is not in the configuration')
    with open(daemon.arguments[1], 'w', encoding='utf-8') as stream:
        stream.write(text.replace(old, new))


def replayed(daemon):
    return [event['text'] for event in events(daemon) if event['kind'] == 'cache recovered']


def survive(t, daemon, end, times=2):
    """Ends the daemon under load again and again; everything that was acknowledged comes back."""
    loads = [Load(t, daemon.url(volume), *RATE, '--span', '4MiB', '--sessions', '2')
             for volume in ('v', 'w')]
    for number in range(times):
        time.sleep(0.7)
        for load in loads:
            load.require_running(f'before end {number + 1}')
        t.check(set_of(daemon)['dirty'] > 0, 'something is in the NVRAM alone')
        end(number)
        t.say(f'ready {restart(t, daemon):.2f} s after the start: {replayed(daemon)[-1]}')
    time.sleep(0.5)
    for load in loads:
        report = load.require_good()
        t.check(report['connections_lost'] >= times, 'the load was attached at every end')
    t.check(len(replayed(daemon)) == times, f'every start goes on: {replayed(daemon)}')
    began = time.monotonic()
    daemon.sandbay('cache', 'flush')
    t.say(f'on the drives after {time.monotonic() - began:.2f} s')
    t.check(set_of(daemon)['dirty'] == 0, 'everything is on the drives')
    lost = [kind for kind in kinds(daemon) if 'lost' in kind]
    t.check(not lost, f'nothing was lost: {lost}')
    daemon.sandbay('raid', 'verify', 'r', '--wait')
    t.check(the_set(daemon, 'r')['counters']['mismatches'] == 0, 'redundancy is consistent')


def test_kills_with_one_reactor(t):
    daemon = bay(t, volumes=('v', 'w'), reactors=1)
    survive(t, daemon, lambda number: daemon.kill())


def test_kills_with_two_reactors_and_a_mirror(t):
    daemon = bay(t, nvram=NVRAM + 'mirror = "mirror.img"\n', volumes=('v', 'w'), reactors=2)
    survive(t, daemon, lambda number: daemon.kill())
    t.check(cache_of(daemon)['nvram']['mirror'] == 'good', 'the mirror is whole')


def test_power_cuts_with_a_battery(t):
    """FUA and SYNCHRONIZE CACHE are content with the NVRAM, and hosts are told so."""
    daemon = bay(t, volumes=('v', 'w'), write_cache=False)
    t.check(cache_of(daemon)['non_volatile'], 'what is acknowledged survives')
    page = Host(t, daemon, 'v').good(host.inquiry(page=0x86), 255)
    t.check(page[6] & 3 == 2, f'VPD 86h: NV_SUP, not V_SUP: {page[6]:#x}')
    # Nothing is destaged, so it is a read that the cut waits for.
    survive(t, daemon, lambda number: cut(t, daemon, 'op=read', f'after={number}', 'loss=all'))


def test_power_cuts_without_a_battery(t):
    """Writes go through, and nothing is lost with the NVRAM."""
    daemon = bay(t, nvram=NVRAM + 'battery = "dead"\n', write_cache=False)
    shown = cache_of(daemon)
    t.check(not shown['non_volatile'] and shown['nvram']['battery'] == 'dead', f'{shown["nvram"]}')
    page = Host(t, daemon, 'v').good(host.inquiry(page=0x86), 255)
    t.check(page[6] & 3 == 1, f'VPD 86h: V_SUP, not NV_SUP: {page[6]:#x}')
    load = Load(t, daemon.url('v'), *RATE, '--span', '4MiB')
    time.sleep(0.7)
    t.check(set_of(daemon)['dirty'] == 0, 'nothing stays in the NVRAM')
    cut(t, daemon, 'op=write', 'after=20', 'loss=all')
    daemon.start()
    time.sleep(0.3)
    load.require_good()
    told = kinds(daemon)
    t.check('writes lost' not in told and 'cache recovered' not in told, f'{told}')


def test_a_battery_that_becomes_low(t):
    daemon = bay(t)
    put(t, daemon, image(t, 'a', 4, 1))
    add(daemon, 'id=low at=nvram do=battery.low')
    t.until(lambda: set_of(daemon)['dirty'] == 0, 'everything goes to the drives at once')
    before = counters_of(daemon)['write_throughs']
    write(t, daemon, image(t, 'b', 4, 2), 'v')
    t.check(counters_of(daemon)['write_throughs'] > before, 'writes go through')
    t.check(set_of(daemon)['dirty'] == 0, 'nothing stays in the NVRAM')
    daemon.sandbay('fault', 'clear', 'low')
    put(t, daemon, image(t, 'c', 4, 3))
    daemon.kill()
    daemon.start()
    require_same(t, daemon, image(t, 'c', 4, 3), 'v', 'after the kill')


def dirty_and_offline(t, daemon, data):
    """Acknowledged writes that the drives, which are out, cannot take."""
    put(t, daemon, data)
    add(daemon, 'id=out at=enclosure:shelf do=shelf.loss for=1h')
    daemon.sandbay('cache', 'flush', ok=False)
    t.check(set_of(daemon)['failure'], 'nothing can be brought to the drives, and that is told')
    shown = the_set(daemon, 'r')
    t.check(any('cannot be brought' in note for note in shown['notes']), f'{shown["notes"]}')


def lose_power(t, daemon, battery):
    if not battery:
        add(daemon, 'at=nvram:A do=battery.low')
    daemon.sandbay('fault', 'add', 'at=drive:d0', 'do=power.cut', ok=None)
    t.until(lambda: not daemon.alive(), 'the power is cut')


def test_a_set_that_fails_and_returns(t):
    """Its dirty data stays, over a power cut, too; then it goes to the drives."""
    daemon = bay(t)
    data = image(t, 'data', 4, 4)
    dirty_and_offline(t, daemon, data)
    lose_power(t, daemon, battery=True)
    daemon.start()
    require_same(t, daemon, data, 'v', 'after the cut')
    daemon.sandbay('cache', 'flush')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_what_a_low_battery_loses_is_told_by_range(t):
    daemon = bay(t)
    dirty_and_offline(t, daemon, image(t, 'data', 4, 4))
    lose_power(t, daemon, battery=False)
    daemon.start()
    lost = set_of(daemon)['lost']
    t.check(lost and all(r['volume'] == 'v' and r['why'] == 'power cut' for r in lost), f'{lost}')
    t.check(sum(r['blocks'] for r in lost) >= 4096, f'all of it is named: {lost}')
    t.check('writes lost' in kinds(daemon), 'it is told')
    t.check(any('are lost' in note for note in the_set(daemon, 'r')['notes']), 'with the set, too')
    daemon.sandbay('cache', 'acknowledge', 'r')
    daemon.kill()
    daemon.start()
    t.check(not the_set(daemon, 'r')['notes'], 'until somebody has taken notice')


def test_discard(t):
    daemon = bay(t)
    daemon.sandbay('cache', 'discard', 'r', ok=False)
    text = daemon.sandbay('cache', 'discard', 'r', '--yes-lose-data', ok=False).stdout
    t.check('nothing to give up' in text, text)
    dirty_and_offline(t, daemon, image(t, 'data', 4, 4))
    text = daemon.sandbay('cache', 'discard', 'r', '--yes-lose-data').stdout
    t.check('volume v, blocks' in text, f'what it was is named: {text}')
    shown = set_of(daemon)
    t.check(shown['dirty'] == 0 and not shown['failure'], f'it is gone: {shown}')
    t.check(shown['stuck'] == 0, f'{shown}')
    t.check('writes discarded' in kinds(daemon), 'it is told')
    daemon.kill()
    daemon.start()
    t.check(not replayed(daemon), 'and stays gone')
    lost = set_of(daemon)['lost']
    t.check(lost and all(r['why'] == 'given up by an operator' for r in lost), f'{lost}')
    daemon.sandbay('cache', 'acknowledge', 'r')
    text = daemon.sandbay('cache', 'acknowledge', 'r', ok=False).stdout
    t.check('nothing to take notice of' in text, text)


def test_what_is_stuck_is_told_at_once(t):
    """Nobody has wanted it on the drives yet; and again after a start without them."""
    daemon = bay(t)
    data = image(t, 'data', 4, 4)
    put(t, daemon, data)
    add(daemon, 'id=out at=enclosure:shelf do=shelf.loss for=1h')
    t.until(lambda: 'writes stuck' in kinds(daemon), 'it is told')
    shown = set_of(daemon)
    t.check(shown['stuck'] == shown['dirty'] > 0 and shown['failure'], f'{shown}')
    daemon.sandbay('fault', 'clear', 'out')
    t.until(lambda: 'writes go on' in kinds(daemon), 'it is over')
    require_same(t, daemon, data, 'v', 'afterwards')


def test_damage_while_it_runs(t):
    """What is damaged in the NVRAM does not go to the drives: it is lost, told, and not readable
    until it is written again, also after a restart.
    """
    daemon = bay(t)
    data = image(t, 'data', 4, 4)
    put(t, daemon, data)
    add(daemon, 'at=nvram:A do=nvram.loss')
    text = daemon.sandbay('cache', 'flush', ok=False).stdout
    t.check('were damaged in the NVRAM and are lost' in text, text)
    lost = set_of(daemon)['lost']
    t.check(lost and all(r['volume'] == 'v' and r['why'] == 'damaged' for r in lost), f'{lost}')
    t.check('writes lost' in kinds(daemon), 'it is told')
    for when in ('at once', 'after a restart'):
        bad = t.run('qemu-img', 'convert', '-f', 'raw', '-O', 'raw', daemon.url('v'),
                    t.path('read'), ok=None)
        t.check(bad.returncode != 0, f'{when}: it is not served')
        if when == 'at once':
            t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
            daemon.start()
    write(t, daemon, data, 'v')
    require_same(t, daemon, data, 'v', 'written again')


def test_damage_while_it_runs_and_a_mirror(t):
    daemon = bay(t, nvram=NVRAM + 'mirror = "mirror.img"\n')
    data = image(t, 'data', 4, 4)
    put(t, daemon, data)
    add(daemon, 'at=nvram:A do=nvram.loss')
    daemon.sandbay('cache', 'flush')
    t.check(not set_of(daemon)['lost'], 'nothing is lost')
    require_same(t, daemon, data, 'v', 'from the mirror')


def test_the_mirror_stands_in(t):
    """The NVRAM's content is lost, and then the whole image; one of before is not believed."""
    daemon = bay(t, nvram=NVRAM + 'mirror = "mirror.img"\n')
    data = image(t, 'data', 4, 5)
    put(t, daemon, data)
    add(daemon, 'at=nvram:A do=nvram.loss')
    daemon.kill()
    daemon.start()
    t.check('only the mirror had' in replayed(daemon)[-1], replayed(daemon)[-1])
    require_same(t, daemon, data, 'v', 'after the loss')
    nvram, old, new = (f'{daemon.state}/{name}.img' for name in ('nvram', 'old', 'new'))
    for seed, taken, brought in ((6, old, None), (7, new, old), (8, old, new)):
        data = image(t, f'data{seed}', 4, seed)
        put(t, daemon, data)
        daemon.kill()
        os.rename(nvram, taken)
        if brought:
            os.rename(brought, nvram)
        daemon.start()
        require_same(t, daemon, data, 'v', 'with the blank one' if not brought else brought)
    t.check('writes lost' not in kinds(daemon), f'nothing was lost: {kinds(daemon)}')


def test_without_a_mirror_the_loss_is_told(t):
    daemon = bay(t)
    put(t, daemon, image(t, 'data', 4, 5))
    add(daemon, 'at=nvram:A do=nvram.loss')
    daemon.kill()
    daemon.start()
    t.check(set_of(daemon)['lost'] and 'writes lost' in kinds(daemon), f'{set_of(daemon)}')


def test_an_nvram_that_is_not_there(t):
    """The set is not served without its newest writes, until they come back or are given up."""
    daemon = bay(t)
    data = image(t, 'data', 4, 8)
    put(t, daemon, data)
    daemon.kill()
    nvram, away = f'{daemon.state}/nvram.img', f'{daemon.state}/away.img'
    os.rename(nvram, away)
    daemon.start()
    shown = the_set(daemon, 'r')
    t.check(not shown['running'] and 'cache discard r' in shown['reason'], f'{shown["reason"]}')
    for accept in ([], ['--accept-loss']):  # Its journal may be in that NVRAM, too.
        refused = daemon.sandbay('raid', 'start', 'r', *accept, ok=False).stdout
        t.check('cache discard r' in refused, f'raid start {accept}: {refused}')
    t.check('set barred' in kinds(daemon), 'it is told')
    read = ['qemu-io', '-f', 'raw', '-c', 'read 0 4k', daemon.url('v')]
    t.check('read 4096/4096' not in t.run(*read, ok=None).stdout, 'nothing old is read')
    daemon.kill()
    os.rename(nvram, f'{daemon.state}/blank.img')
    os.rename(away, nvram)
    daemon.start()
    require_same(t, daemon, data, 'v', 'with the NVRAM')
    # Also without any cache in the configuration; and once given up it stays given up.
    daemon.kill()
    replace(daemon, 'nvram = "18MiB"\n', '')
    daemon.start()
    daemon.sandbay('cache', 'discard', 'r', '--yes-lose-data')
    t.check(the_set(daemon, 'r')['running'], 'it is served at once')
    t.check('read 4096/4096' in t.run(*read).stdout, 'with what is on the drives')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    replace(daemon, '[cache]\n', '[cache]\nnvram = "18MiB"\n')
    daemon.start()
    t.check('cache stale' in kinds(daemon) and not set_of(daemon)['dirty'],
            'the old writes are dropped')


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crash_host(path):
    """The image says that another boot of the host has used it; see src/nvram/image_layout.h."""
    with open(path, 'r+b') as stream:
        pages = [bytearray(stream.read(4096)) for _ in range(2)]
        for number, page in enumerate(pages):
            if not any(page):
                continue
            page[48:88] = b'another boot'.ljust(40, b'\0')
            page[12:16] = bytes(4)
            page[12:16] = struct.pack('<I', crc32c(page))
            stream.seek(4096 * number)
            stream.write(page)


def test_durability_and_a_crash_of_the_host(t):
    data = image(t, 'data', 2, 9)
    for durability in ('process', 'host'):
        daemon = bay(t, nvram=f'[nvram]\nsize = "24MiB"\ndurability = "{durability}"\n',
                     breakable=False)
        safe = durability == 'host'
        t.check(cache_of(daemon)['non_volatile'] == safe, 'hosts are told')
        if safe:
            put(t, daemon, data)
        else:
            daemon.load('--write', '--read-percent', '0', '--warm-up', '0s', '--duration', '300ms',
                        '--rate', '500', daemon.url('v'))
        t.check(set_of(daemon)['dirty'] > 0, 'it is in the NVRAM')
        daemon.kill()
        crash_host(f'{daemon.state}/nvram.img')
        daemon.start()
        lost = set_of(daemon)['lost']
        if safe:
            t.check(not lost and replayed(daemon), f'it is all there: {lost}')
            require_same(t, daemon, data, 'v', 'after the crash')
        else:
            t.check(any(r['why'] == 'host crash' for r in lost), f'it is lost, and told: {lost}')
            t.check(not replayed(daemon), 'nothing is replayed')
        t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_modes_of_volumes(t):
    daemon = bay(t, volumes=('v', 'w'), cache=LAZY)
    data = image(t, 'data', 2, 10)
    put(t, daemon, data, 'w')
    dirty = set_of(daemon)['dirty']
    for mode in ('write-through', 'none'):
        daemon.sandbay('volume', 'cache', 'v', mode)
        t.check(daemon.sandbay_json('volume', 'show', 'v')['cache'] == mode, 'it is shown')
        before = counters_of(daemon)
        write(t, daemon, data, 'v')
        require_same(t, daemon, data, 'v', mode)
        after = counters_of(daemon)
        t.check(after['write_throughs'] > before['write_throughs'], 'writes went through')
        hits = after['hits'] - before['hits']
        t.check((hits > 0) == (mode == 'write-through'), f'{mode}: {hits} hits')
        t.check(set_of(daemon)['dirty'] == dirty, 'the other volume is as it was')
    daemon.kill()
    daemon.start()
    t.check(daemon.sandbay_json('volume', 'show', 'v')['cache'] == 'none', 'it is kept')
    require_same(t, daemon, data, 'w', 'the other volume after the kill')
    daemon.sandbay('volume', 'create', 'x', '--raid', 'r', '--size', '2MiB', '--cache',
                   'write-through')
    daemon.sandbay('volume', 'cache', 'x', 'sometimes', ok=False)


def test_many_writers_and_little_memory(t):
    """64 clients write as fast as they can: nothing is refused, and no memory is taken for it but
    what is configured.
    """
    daemon = bay(t, cache='[cache]\nmemory = "32MiB"\nnvram = "18MiB"\n', breakable=False,
                 reactors=2, size='72MiB')
    before = daemon.resident_bytes()
    load = Load(t, daemon.url('v'), '--sessions', '64', '--queue-depth', '8', '--block-size',
                '64KiB', '--read-percent', '5')
    most = 0
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        load.require_running('under load')
        most = max(most, daemon.resident_bytes())
        memory = cache_of(daemon)['memory']
        t.check(memory['used'] <= memory['size'], f'the limit of the cache holds: {memory}')
        time.sleep(0.1)
    load.require_good()
    t.say(f'{before >> 20} MiB before, {most >> 20} MiB under load')
    # The cache's own memory, the image of the NVRAM, what a set computes parity in; and 64 sessions
    # with 8 requests of 64 KiB each on their way. All of it is in use when drives keep up.
    t.check(most - before < (32 + 18 + 64 + 64 * 8 * 64 // 1024 + 16) << 20, 'memory is bounded')


def test_sigterm_leaves_nothing_dirty(t):
    """The NVRAM may be thrown away afterwards."""
    daemon = bay(t)
    data = image(t, 'data', 4, 11)
    put(t, daemon, data)
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    os.remove(f'{daemon.state}/nvram.img')
    daemon.start()
    t.check(not replayed(daemon) and 'set barred' not in kinds(daemon), f'{kinds(daemon)}')
    require_same(t, daemon, data, 'v', 'without the NVRAM')


def test_a_volatile_cache_is_flushed_at_the_end(t):
    daemon = bay(t, nvram='', cache=LAZY.replace('nvram = "18MiB"\n', ''))
    data = image(t, 'data', 4, 12)
    write(t, daemon, data, 'v')
    shown = cache_of(daemon)
    t.check(not shown['non_volatile'] and shown['nvram']['size'] == 0, f'{shown["nvram"]}')
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 7 0 64k', daemon.url('v'))
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 0 64k', daemon.url('v'))


def test_a_deleted_volume_leaves_nothing_behind(t):
    """A new volume in its place reads as zeros, now and after a kill."""
    daemon = bay(t)
    for round_number in range(2):
        daemon.sandbay('volume', 'create', 'x', '--raid', 'r', '--size', '4MiB', '--initiator', '*')
        t.run('qemu-io', '-f', 'raw', '-c', 'read -P 0 0 4M', daemon.url('x'))
        t.run('qemu-io', '-f', 'raw', '-c', 'write -P 99 0 4M', daemon.url('x'))
        if round_number == 0:
            daemon.sandbay('volume', 'delete', 'x')
    daemon.sandbay('volume', 'delete', 'x')
    daemon.sandbay('volume', 'create', 'x', '--raid', 'r', '--size', '4MiB', '--initiator', '*')
    daemon.kill()
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 0 0 4M', daemon.url('x'))
