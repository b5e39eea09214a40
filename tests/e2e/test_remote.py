"""A group with a member elsewhere: another daemon in a network namespace of its own, behind a link
that is cut and healed, kills of either side, and a second lead on a copy of the state.
"""
import os
import shutil
import time

import host
from harness import Skipped
from host import Host
from raid_lab import Load, drives, events, faults, image, raid, require_same, write

NVRAM = '[nvram]\nsize = "32MiB"\npower_loss_only_emulated = true\n'
CACHE = '[cache]\nmemory = "32MiB"\nnvram = "18MiB"\n'
NAMES = iter(range(100))


class Link:
    """A namespace, and a pair of interfaces that leads there."""

    def __init__(self, t):
        t.need('ip')
        self.t = t
        tag = f'{os.getpid() % 10000}x{next(NAMES)}'
        self.space, self.near, self.far = f'sbm{tag}', f'sbn{tag}', f'sbf{tag}'
        net = f'10.{200 + os.getpid() % 50}.{next(NAMES)}'
        self.lead, self.member = f'{net}.1', f'{net}.2'
        if t.run('ip', 'netns', 'add', self.space, ok=None).returncode != 0:
            raise Skipped('network namespaces are not permitted here')
        t.at_end(self._remove)
        self._ip('link', 'add', self.near, 'type', 'veth', 'peer', 'name', self.far)
        self._ip('link', 'set', self.far, 'netns', self.space)
        self._ip('addr', 'add', f'{self.lead}/24', 'dev', self.near)
        self._ip('link', 'set', self.near, 'up')
        for words in (['addr', 'add', f'{self.member}/24', 'dev', self.far],
                      ['link', 'set', self.far, 'up'], ['link', 'set', 'lo', 'up']):
            self._ip('-n', self.space, *words)

    def _ip(self, *words):
        done = self.t.run('ip', *words, ok=None)
        if done.returncode != 0:
            raise Skipped(f'ip {" ".join(words)}: {done.stdout.strip()}')

    def _remove(self):
        self.t.run('ip', 'link', 'del', self.near, ok=None)
        self.t.run('ip', 'netns', 'del', self.space, ok=None)

    def inside(self):
        return ['ip', 'netns', 'exec', self.space]

    def cut(self):
        self._ip('link', 'set', self.near, 'down')

    def heal(self):
        self._ip('link', 'set', self.near, 'up')


def member(t, link, cache=True):
    """A daemon in the role of a member, in the namespace."""
    path = t.path('member.toml')
    text = ('[group]\nname = "array2"\nrole = "member"\nstate = "unused"\n'
            f'[lead]\naddress = "{link.lead}"\nchap_user = "lead"\n'
            'chap_secret = "twelve-bytes-or-more"\n[[portal]]\nlisten = "127.0.0.1:3260"\n' +
            drives(['m0', 'm1'], '96MiB') + raid('a', 'raid1', ['m0', 'm1'], journal='1MiB'))
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text + (NVRAM + CACHE if cache else ''))
    return t.daemon(portals=(link.member,), config=path, wrapper=link.inside())


def lead_sections(far, local=False, patience='3s'):
    sections = (f'[[member]]\nname = "array2"\nremote = "{far.portal}"\npatience = "{patience}"\n'
                'chap_user = "lead"\nchap_secret = "twelve-bytes-or-more"\n'
                '[[pool]]\nname = "p"\npage = "1MiB"\nmembers = ["array1", "array2"]\n')
    if local:
        sections += drives(['d0', 'd1'], '96MiB') + raid('l', 'raid1', ['d0', 'd1'], journal='1MiB')
    return sections


def the_store(daemon, name='array2/a'):
    stores = daemon.sandbay_json('pool', 'show', 'p')['stores']
    return next((store for store in stores if store['set'] == name), None)


def serves(daemon):
    store = the_store(daemon)
    return store is not None and not store.get('reason')


def told(daemon, words):
    return any(words in event['text'] for event in events(daemon))


def require_whole(t, daemon, when):
    checked = daemon.sandbay_json('group', 'check')['pools']
    t.check(checked and all(not one['wrong'] for one in checked), f'{when}: {checked}')


def require_right(t, load):
    """Ends a load that may have been refused requests: what was read was right all the same."""
    report = load.end()
    t.check(report['miscompares'] == 0,
            f'no wrong data: {report["miscompares"]}, {report["first_miscompare"]}')
    t.check(report['blocks_verified'] > 0, 'something was verified')
    return report


def test_a_cut_link_loses_nothing(t):
    t.need('openssl', 'qemu-img')
    link = Link(t)
    far = member(t, link)
    lead = t.daemon([{'name': 'v', 'size': '48MiB', 'pool': 'p'}], extra=lead_sections(far))
    t.until(lambda: serves(lead), 'the member is a part of the pool')
    data = image(t, 'data', 16, 1)
    write(t, lead, data, 'v')
    load = Load(t, lead.url('v'), '--queue-depth', '4', '--rate', '300', '--offset', '16MiB',
                '--block-size', '16KiB')
    for seconds in (0.3, 2):  # Shorter than the patience: hosts wait.
        time.sleep(0.7)
        link.cut()
        time.sleep(seconds)
        link.heal()
    time.sleep(1.5)
    load.require_running('short cuts')
    load.require_good()
    load = Load(t, lead.url('v'), '--queue-depth', '4', '--rate', '300', '--offset', '16MiB',
                '--block-size', '16KiB')
    time.sleep(0.7)
    link.cut()
    t.until(lambda: not serves(lead), 'the member is missed')
    t.until(lambda: told(lead, 'member array2: lost'), 'that is told')
    time.sleep(1)
    link.heal()
    t.until(lambda: serves(lead), 'the member is back')
    time.sleep(0.7)
    require_right(t, load)
    require_same(t, lead, data, 'v', 'at the end')
    require_whole(t, lead, 'at the end')
    t.check(lead.terminate() == 0, 'an orderly end of the lead')
    t.check(far.terminate() == 0, 'an orderly end of the member')


# The initiator of the lead bears what rules do to its connections; its host notices nothing.
def test_faults_on_the_link_to_a_member_lose_nothing(t):
    link = Link(t)
    far = member(t, link)
    lead = t.daemon([{'name': 'v', 'pool': 'p', 'size': '32MiB'}],
                    extra=lead_sections(far, patience='30s') + faults())
    t.until(lambda: serves(lead), 'the member serves', 30)
    place = f'link:{far.portal}'
    t.check(place in lead.sandbay_json('fault', 'places')['places'], 'the link is a place')
    load = Load(t, lead.url('v'), '--queue-depth', '8', '--rate', '300')
    for rule in ('do=pdu.delay latency=1ms..5ms', 'every=100 do=drop',
                 'every=100 do=pdu.truncate', 'dir=out every=100 do=pdu.dup',
                 'do=rate bandwidth=10MB/s', 'every=20 do=fragment bytes=200',
                 'every=200 do=statsn.gap', 'count=1 do=drop how=silence'):
        lead.sandbay('fault', 'add', 'id=now', f'at={place}', 'after=50', *rule.split())
        time.sleep(1.5)
        load.require_running(rule)
        struck = lead.sandbay_json('fault', 'show', 'now')['struck']
        t.check(struck > 0, f'{rule}: nothing was struck')
        lead.sandbay('fault', 'clear', 'now')
    t.until(lambda: serves(lead), 'the member serves at the end', 60)
    load.require_good()
    require_whole(t, lead, 'at the end')


def test_kills_of_either_side_lose_nothing(t):
    t.need('openssl', 'qemu-img')
    link = Link(t)
    far = member(t, link)
    lead = t.daemon([{'name': 'v', 'size': '48MiB', 'pool': 'p'}],
                    extra=lead_sections(far, patience='20s'))
    t.until(lambda: serves(lead), 'the member is a part of the pool')
    data = image(t, 'data', 16, 1)
    write(t, lead, data, 'v')
    load = Load(t, lead.url('v'), '--queue-depth', '4', '--rate', '300', '--offset', '16MiB',
                '--block-size', '16KiB')
    for number in range(2):
        time.sleep(1.5)
        far.kill()
        far.start()
        t.until(lambda: serves(lead), f'the member is back, {number}')
        load.require_running(f'after kill {number} of the member')
        time.sleep(1)
        lead.kill()
        begun = time.monotonic()
        lead.start()
        t.until(lambda: serves(lead), f'the lead is back, {number}')
        t.say(f'lead back after {time.monotonic() - begun:.1f} s')
        load.require_running(f'after kill {number} of the lead')
    load.require_good()
    require_same(t, lead, data, 'v', 'at the end')
    require_whole(t, lead, 'at the end')


def test_only_volumes_on_the_member_are_away(t):
    t.need('qemu-io')
    link = Link(t)
    far = member(t, link)
    volumes = [{'name': 'here', 'size': '8MiB', 'pool': 'p', 'on': 'l'},
               {'name': 'there', 'size': '8MiB', 'pool': 'p', 'on': 'array2/a'}]
    lead = t.daemon([{'name': 'm', 'size': '1MiB', 'memory': True}],
                    extra=lead_sections(far, local=True, patience='1s'))
    t.until(lambda: serves(lead), 'the member is a part of the pool')
    for volume in volumes:
        lead.sandbay('volume', 'create', volume['name'], '--size', '8MiB', '--pool', 'p', '--on',
                     volume['on'])
        lead.sandbay('access', 'add', volume['name'], '--initiator', '*')
        t.run('qemu-io', '-f', 'raw', '-c', 'write -P 7 0 8M', '-c', 'flush',
              lead.url(volume['name']))
    lead.sandbay('volume', 'create', 'thin', '--size', '8MiB', '--pool', 'p', '--thin')
    lead.sandbay('access', 'add', 'thin', '--initiator', '*')
    watching = Host(t, lead, 'there')
    watching.attentions()
    link.cut()
    t.until(lambda: not serves(lead), 'the member is missed')
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 0 8M', lead.url('here'))
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 5 0 2M', '-c', 'read -P 5 0 2M',
          lead.url('thin'))
    for cdb, length in ((host.TEST_UNIT_READY, 0), (host.read_10(0, 1), 4096)):
        reply = watching.command(cdb, length)
        t.check((reply.status, reply.key, reply.additional >> 8) ==
                (host.CHECK_CONDITION, 2, 4), f'not ready: {reply!r}')
    link.heal()
    t.until(lambda: serves(lead), 'the member is back')
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 7 0 8M', lead.url('there'))


def test_what_a_volatile_member_may_have_lost_is_told(t):
    """Without NVRAM: every volume with writes that were not flushed hears of it, once."""
    link = Link(t)
    far = member(t, link, cache=False)
    lead = t.daemon([{'name': 'v', 'size': '8MiB', 'pool': 'p'},
                     {'name': 'w', 'size': '8MiB', 'pool': 'p'}],
                    extra=lead_sections(far, patience='20s'))
    t.until(lambda: serves(lead), 'the member is a part of the pool')
    flush = bytes([0x35]) + bytes(9)
    hosts = [Host(t, lead, name, isid=number) for number, name in enumerate('vw', 1)]
    for one in hosts:
        one.attentions()
        block = int.from_bytes(one.good(host.read_capacity_16(), 32)[8:12], 'big')
        # The first write of a chunk is forced; what is written over it is not.
        for _ in range(2):
            one.good(host.write_10(0, 1), data=bytes(block))
    far.kill()
    far.start()
    t.until(lambda: serves(lead), 'the member is back')
    for one in hosts:
        reply = one.command(flush)
        t.check((reply.status, reply.key) == (host.CHECK_CONDITION, 4), f'told: {reply!r}')
        one.good(flush)


def copy_of(t, far, name):
    """Another lead, on a copy of the first one's state."""
    second = t.daemon([{'name': 'v', 'size': '48MiB', 'pool': 'p'}], extra=lead_sections(far),
                      start=False)
    shutil.rmtree(second.state)
    shutil.copytree(os.path.join(t.directory, name), second.state)
    return second


def test_a_second_lead_is_refused(t):
    t.need('qemu-io')
    link = Link(t)
    far = member(t, link)
    lead = t.daemon([{'name': 'v', 'size': '48MiB', 'pool': 'p'}], extra=lead_sections(far))
    t.until(lambda: serves(lead), 'the member is a part of the pool')
    t.check(lead.terminate() == 0, 'an orderly end')
    shutil.copytree(lead.state, t.path('backup'))
    lead.start()
    t.until(lambda: serves(lead), 'the member is back')
    load = Load(t, lead.url('v'), '--queue-depth', '4', '--rate', '300', '--block-size', '16KiB')
    second = copy_of(t, far, 'backup')
    second.start()
    time.sleep(4)
    t.check(not serves(second), 'the copy does not get in')
    load.require_running('beside a second lead')
    load.require_good()
    with open(far.log, encoding='utf-8') as stream:
        text = stream.read()
    t.check('is refused as lead' in text, 'the member says so')
    # The first has gone: the backup is older than what the member has seen.
    lead.kill()
    t.until(lambda: told(second, 'a newer state of this group'), 'the copy says why')
    t.check(not serves(second), 'it stays outside')
    lead.start()
    t.until(lambda: serves(lead), 'the lead gets in again')
    t.run('qemu-io', '-f', 'raw', '-c', 'read 0 1M', lead.url('v'))
    # Unless the administrator of the member says so.
    lead.kill()
    far.terminate()
    far.arguments.append('--forget-lead')
    far.start()
    t.until(lambda: serves(second), 'the copy is taken at last')
