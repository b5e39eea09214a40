"""Images of NVRAM in wrong places, of other groups, older than the last, cut short while they are
used, and power cuts: whatever an operator does with these files, nothing that was acknowledged is
gone without a word.
"""
import os
import shutil
import time

from raid_lab import Load, events, image, kinds, require_same, the_set
from test_cache import LAZY, NVRAM, bay, cache_of, put, replace, require_cut, set_of

MIRROR = NVRAM + 'mirror = "mirror.img"\n'


def texts(daemon, kind):
    return [event['text'] for event in events(daemon) if event['kind'] == kind]


def refused(t, daemon):
    """What it says when it does not start."""
    result = t.run(t.program('sandbayd'), *daemon.arguments, ok=False, seconds=30)
    t.check(result.returncode == 2, f'{result.returncode}')
    return result.stdout.strip()


def dirty(t, mark, **keys):
    daemon = bay(t, **keys)
    data = image(t, f'data{mark}', 2, mark)
    put(t, daemon, data)
    daemon.kill()
    return daemon, data


def test_an_nvram_named_as_mirror(t):
    """Named as the mirror of another one, the NVRAM of a set keeps what the set waits for."""
    daemon, data = dirty(t, 1)
    replace(daemon, NVRAM, NVRAM + 'file = "new.img"\nmirror = "nvram.img"\n')
    daemon.start()
    t.check(not the_set(daemon, 'r')['running'], 'the set waits for it')
    told = texts(daemon, 'mirror lost')
    t.check(told and 'is NVRAM ' in told[0] and 'write it as file' in told[0], f'{told}')
    t.check(cache_of(daemon)['nvram']['mirror'] == 'lost', 'it is no mirror')
    daemon.kill()
    replace(daemon, NVRAM + 'file = "new.img"\nmirror = "nvram.img"\n', NVRAM)
    daemon.start()
    require_same(t, daemon, data, 'v', 'with the old configuration')


def test_an_nvram_of_another_group(t):
    """Neither as NVRAM nor as mirror; and back in its place it has what it had."""
    theirs, data = dirty(t, 2)
    ours, our_data = dirty(t, 3)
    own, foreign = f'{ours.state}/nvram.img', f'{theirs.state}/nvram.img'
    os.rename(own, f'{ours.state}/own.img')
    shutil.copyfile(foreign, own)
    line = refused(t, ours)
    t.check('belongs to another group' in line and '\n' not in line, line)
    os.rename(f'{ours.state}/own.img', own)
    replace(ours, NVRAM, NVRAM + f'mirror = "{foreign}"\n')
    ours.start()
    told = texts(ours, 'mirror lost')
    t.check(told and 'belongs to another group' in told[0], f'{told}')
    require_same(t, ours, our_data, 'v', 'without a mirror')
    theirs.start()
    require_same(t, theirs, data, 'v', 'as if nothing had been')


def test_an_older_copy(t):
    """Bars the set, as none at all does; nothing old is laid over what is newer."""
    daemon, _ = dirty(t, 4)
    nvram, old, good = (f'{daemon.state}/{name}.img' for name in ('nvram', 'old', 'good'))
    shutil.copyfile(nvram, old)
    daemon.start()
    data = image(t, 'newer', 2, 5)
    put(t, daemon, data)
    daemon.kill()
    os.rename(nvram, good)
    shutil.copyfile(old, nvram)
    daemon.start()
    shown = the_set(daemon, 'r')
    t.check(not shown['running'] and 'is an older copy of' in shown['reason'], shown['reason'])
    daemon.kill()
    os.rename(good, nvram)
    daemon.start()
    require_same(t, daemon, data, 'v', 'with the newest')


def test_an_image_that_is_cut_short_while_it_is_used(t):
    """The daemon goes on, tells it once, and loses nothing while the other of the two is good."""
    for name, kind in (('mirror', 'mirror lost'), ('nvram', 'nvram failed')):
        daemon = bay(t, nvram=MIRROR)
        data = image(t, f'data-{name}', 2, 6)
        put(t, daemon, data)
        os.truncate(f'{daemon.state}/{name}.img', 0)
        t.until(lambda: kind in kinds(daemon), 'it is noticed', 15)
        if name == 'nvram':
            t.until(lambda: not set_of(daemon)['dirty'], 'everything goes to the drives', 30)
        require_same(t, daemon, data, 'v', f'without the {name}')
        daemon.load('--write', '--duration', '300ms', '--rate', '500', '--offset', '8MiB', '--span',
                    '1MiB', daemon.url('v'))
        t.check(kinds(daemon).count(kind) == 1, f'told once: {kinds(daemon)}')
        t.check('writes lost' not in kinds(daemon), f'nothing is lost: {kinds(daemon)}')
        daemon.kill()
        daemon.start()
        require_same(t, daemon, data, 'v', f'after a start without the {name}')


def test_an_image_that_is_cut_short_without_a_mirror(t):
    """What only it had is told as lost, by range."""
    daemon = bay(t)
    put(t, daemon, image(t, 'data', 2, 7))
    os.truncate(f'{daemon.state}/nvram.img', 0)
    t.until(lambda: 'nvram failed' in kinds(daemon), 'it is noticed', 15)
    t.until(lambda: set_of(daemon)['lost'], 'what was in it alone is told', 30)
    t.check(all(lost['blocks'] for lost in set_of(daemon)['lost']), f'{set_of(daemon)["lost"]}')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_a_power_cut_is_no_failure_of_the_mirror(t):
    """A mirror that everything was in stands in for an NVRAM that does not come back."""
    daemon = bay(t, nvram=MIRROR)
    load = Load(t, daemon.url('v'), '--queue-depth', '8', '--rate', '1500')
    for number in range(2):
        time.sleep(0.7)
        load.require_running(f'before cut {number + 1}')
        daemon.sandbay('fault', 'add', 'at=enclosure:shelf', 'op=write', f'after={5 + 31 * number}',
                       'do=power.cut', ok=None)  # It may be gone before it answers.
        daemon.sandbay('cache', 'flush', ok=None)  # Its writes run into the cut.
        require_cut(t, daemon)
        os.remove(f'{daemon.state}/nvram.img')
        daemon.start()
        t.check('mirror lost' not in kinds(daemon), f'{texts(daemon, "mirror lost")}')
        t.check(the_set(daemon, 'r')['running'], 'the mirror has everything')
    time.sleep(0.5)
    load.require_good()


def test_an_image_of_another_size(t):
    """The way to another size is in the line that refuses it."""
    daemon, data = dirty(t, 8)
    replace(daemon, 'size = "24MiB"', 'size = "28MiB"')
    line = refused(t, daemon)
    t.check('write the one that it has' in line and 'remove the file' in line, line)
    replace(daemon, 'size = "28MiB"', 'size = "24MiB"')
    daemon.start()
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    os.remove(f'{daemon.state}/nvram.img')
    replace(daemon, 'size = "24MiB"', 'size = "28MiB"')
    daemon.start()
    require_same(t, daemon, data, 'v', 'with the larger one')
