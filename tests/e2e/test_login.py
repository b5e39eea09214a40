"""Who may log in and see what; peers that only start to, and peers that send noise."""
import concurrent.futures
import os
import random
import struct
import time

import harness
import wire

ME = 'iqn.2026-11.org.sandbay:e2e-me'
OTHER = 'iqn.2026-11.org.sandbay:e2e-other'
SECRET, WRONG = 'correct-horse-battery', 'wrong-horse-battery'
MIB = 1 << 20
READ_10 = 0x28
INITIATOR_ERROR, AUTHENTICATION_FAILED, AUTHORIZATION_FAILED = 2, 0x0201, 0x0202
OUT_OF_RESOURCES = 0x0302


def qemu_io(t, url, initiator=ME, user='', secret='', ok=True):
    host_port, target, lun = url[len('iscsi://'):].split('/')
    options = (f'driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={host_port},'
               f'file.target={target},file.lun={lun},file.initiator-name={initiator}')
    command = ['qemu-io', '--image-opts']
    if user:
        options += f',file.user={user},file.password-secret=s'
        command += ['--object', f'secret,id=s,data={secret}']
    return t.run(*command, '-c', 'read 0 4096', options, ok=ok, seconds=60)


def test_discovery_shows_only_permitted_targets(t):
    t.need('iscsi-ls')
    daemon = t.daemon([
        {'name': 'open', 'size': '16MiB'},
        {'name': 'mine', 'size': '16MiB', 'access': [{'initiator': ME}]},
        {'name': 'wild', 'size': '16MiB', 'access': [{'initiator': ME[:-2] + '*'}]},
        {'name': 'nobody', 'size': '16MiB', 'access': [{'initiator': '*',
                                                        'address': '192.0.2.0/24'}]}])
    for initiator, seen in ((ME, {'open', 'mine', 'wild'}), (OTHER, {'open', 'wild'}),
                            ('iqn.1999-01.org.other:x', {'open'})):
        output = t.run('iscsi-ls', '-i', initiator, f'iscsi://{daemon.portal}').stdout
        names = {name for name in ('open', 'mine', 'wild', 'nobody')
                 if harness.NAME_PREFIX + name in output}
        t.check(names == seen, f'{initiator} sees {names}, not {seen}:\n{output}')
    qemu_io(t, daemon.url('mine'), ME)
    qemu_io(t, daemon.url('mine'), OTHER, ok=False)
    peer = wire.Peer(daemon.address())
    status = peer.login(harness.NAME_PREFIX + 'nobody', ME)
    t.check(status == AUTHORIZATION_FAILED, f'status {status:#06x}')


def test_discovery_shows_luns(t):
    t.need('iscsi-ls')
    daemon = t.daemon([{'name': 'a', 'size': '16MiB'},
                       {'name': 'b', 'size': '32MiB', 'target': harness.NAME_PREFIX + 'a',
                        'lun': 5}])
    output = t.run('iscsi-ls', '-s', f'iscsi://{daemon.portal}').stdout
    t.check('Lun:0' in output and 'Lun:5' in output, output)


def test_chap_right_and_wrong(t):
    """CHAP as libiscsi and QEMU speak it: the right secret, a wrong one, a wrong user, none."""
    t.need('iscsi-ls', 'qemu-io')
    chap = {'initiator': '*', 'chap_user': 'alice', 'chap_secret': SECRET}
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB', 'access': [chap]}])
    qemu_io(t, daemon.url(), user='alice', secret=SECRET)
    t.run('iscsi-inq', daemon.url(user=f'alice%{SECRET}'))
    for user, secret in (('alice', WRONG), ('bob', SECRET), ('', '')):
        qemu_io(t, daemon.url(), user=user, secret=secret, ok=False)
    peer = wire.Peer(daemon.address())
    status = peer.login(harness.NAME_PREFIX + 'disk', ME)
    t.check(status >> 8 == INITIATOR_ERROR, f'without CHAP: status {status:#06x}')
    qemu_io(t, daemon.url(), user='alice', secret=SECRET)


def test_discovery_with_chap(t):
    """Whoever cannot prove itself is told nothing, and still reaches what is open to it."""
    t.need('iscsi-ls', 'qemu-io')
    section = ('\n[discovery]\n[[discovery.access]]\ninitiator = "*"\nchap_user = "finder"\n'
               f'chap_secret = "{SECRET}"\n')
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB'}], extra=section)
    output = t.run('iscsi-ls', f'iscsi://finder%{SECRET}@{daemon.portal}').stdout
    t.check(harness.NAME_PREFIX + 'disk' in output, output)
    for user in ('', f'finder%{WRONG}@', f'bob%{SECRET}@'):
        output = t.run('iscsi-ls', f'iscsi://{user}{daemon.portal}', ok=False).stdout
        t.check(harness.NAME_PREFIX not in output, output)
    qemu_io(t, daemon.url())


def test_wrong_credentials_are_bounded(t):
    """Three hundred logins with a wrong secret leave no memory behind and nobody waiting."""
    t.need('iscsi-inq')
    chap = {'initiator': '*', 'chap_user': 'alice', 'chap_secret': SECRET}
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB', 'access': [chap]}])

    def attempt(_):
        t.run('iscsi-inq', daemon.url(user=f'alice%{WRONG}'), ok=False)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(50)))
        before = daemon.resident_bytes()
        list(pool.map(attempt, range(250)))
    grown = daemon.resident_bytes() - before
    t.check(grown < 16 * MIB, f'{grown} bytes more after 250 refused logins')
    t.run('iscsi-inq', daemon.url(user=f'alice%{SECRET}'))


def test_ipv6_portal(t):
    t.need('iscsi-ls', 'qemu-io')
    if not os.path.exists('/proc/net/if_inet6'):
        raise harness.Skipped('this machine has no IPv6')
    daemon = t.daemon(portals=('::1', '127.0.0.1'))
    output = t.run('iscsi-ls', f'iscsi://{daemon.portal}').stdout
    t.check(f'[::1]:{daemon.address()[1]}' in output, output)
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 9 0 1M', '-c', 'read -P 9 0 1M', daemon.url())
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 9 0 1M', daemon.url(portal=daemon.portals[1]))


LIMITS = '\n[limits]\nmaximum_logins_in_progress = 32\nlogin_timeout = "3s"\n'


def test_half_open_logins_are_bounded(t):
    """Connections that never finish their login: bounded in number, time and memory."""
    t.need('iscsi-inq')
    daemon = t.daemon(extra=LIMITS)
    before = daemon.resident_bytes()
    peers = []
    for number in range(300):
        peer = wire.Peer(daemon.address())
        if number % 3 == 1:
            peer.send(wire.login_request(b'InitiatorName=iqn.x:y\0')[:20])
        if number % 3 == 2:
            peer.send(wire.login_request(wire.text(InitiatorName=ME, SessionType='Discovery'),
                                         stage=0, transit=False))
        peers.append(peer)
    t.run('iscsi-inq', daemon.url(), seconds=20)
    grown = daemon.resident_bytes() - before
    t.check(grown < 64 * MIB, f'{grown} bytes for 300 half-open logins')
    deadline = time.monotonic() + 15
    for peer in peers:
        peer.socket.settimeout(max(0.1, deadline - time.monotonic()))
        t.check(peer.closed(), 'a half-open login was not closed within 15 s')
    daemon.require_alive()


def test_slow_writer_is_cut_off(t):
    """A login sent a byte at a time ends with the login timeout, not with the peer's patience."""
    t.need('iscsi-inq')
    daemon = t.daemon(extra=LIMITS)
    request = wire.login_request(wire.text(InitiatorName=ME, SessionType='Discovery'), stage=0)
    peer = wire.Peer(daemon.address())
    started = time.monotonic()
    try:
        for position in range(len(request)):
            peer.send(request[position:position + 1])
            time.sleep(0.2)
    except ConnectionError:
        pass
    spent = time.monotonic() - started
    t.check(spent < 12, f'a slow login was still going after {spent:.1f} s')
    t.run('iscsi-inq', daemon.url())


def test_garbage_bytes(t):
    """Noise before and after login closes that connection and nothing else."""
    t.need('iscsi-inq')
    daemon = t.daemon(extra=LIMITS)
    generator = random.Random(6)
    for number in range(200):
        peer = wire.Peer(daemon.address())
        try:
            if number % 2:
                status = peer.login(harness.NAME_PREFIX + 'disk', ME, isid=number)
                t.check(status == 0, f'login status {status:#06x}')
            peer.send(generator.randbytes(generator.randrange(1, 5000)))
        except (ConnectionError, EOFError):
            pass
        peer.close()
    daemon.require_alive()
    t.run('iscsi-inq', daemon.url())


def test_peers_that_never_read(t):
    """Reads asked for and never received: memory stays bounded, others are served, and when their
    time is over what they held is free again."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}],
                      extra='\n[limits]\nsend_stall_timeout = "6s"\n')
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 32M', daemon.url())
    good = wire.Peer(daemon.address(), seconds=30)
    t.check(good.login(harness.NAME_PREFIX + 'disk', ME, isid=1) == 0, 'login')
    before, peers = daemon.resident_bytes(), []
    for isid in range(60):
        peer = wire.Peer(daemon.address())
        status = peer.login(harness.NAME_PREFIX + 'disk', ME, isid=isid + 10)
        t.check(status in (0, OUT_OF_RESOURCES), f'login {isid}: status {status:#06x}')
        if status == 0:
            cdb = struct.pack('>BBIBHB', READ_10, 0, 0, 0, 2048, 0)
            for number in range(16):
                peer.send(wire.scsi_command(cdb, number, number + 1, MIB, read=True))
        peers.append(peer)
    time.sleep(1)
    grown = daemon.resident_bytes() - before
    t.say(f'{grown / MIB:.0f} MiB more with 60 × 16 reads of 1 MiB never received')
    t.check(grown < 1200 * MIB, f'{grown} bytes more')
    started = time.monotonic()
    good.send(wire.nop_out(5, 1))
    header, _ = good.receive()
    t.check(header[0] & 0x3f == wire.NOP_IN, 'no answer to a ping')
    t.say(f'another session answers a ping after {time.monotonic() - started:.2f} s')
    t.until(lambda: t.run('qemu-io', '-f', 'raw', '-c', 'read -P 1 0 1M', daemon.url(), ok=None,
                          seconds=60).returncode == 0, 'a new session reads', 40)
    t.say(f'a new session reads after {time.monotonic() - started:.2f} s')
    for peer in peers:
        peer.close()
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_a_thousand_large_writes_started(t):
    """A thousand sessions that each start a 16 MiB write and send none of it."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}],
                      extra='\n[limits]\nmaximum_connections = 2000\n')
    before, peers = daemon.resident_bytes(), []
    cdb = struct.pack('>BBIBHB', 0x2a, 0, 0, 0, 32768, 0)
    for isid in range(1000):
        peer = wire.Peer(daemon.address())
        t.check(peer.login(harness.NAME_PREFIX + 'disk', ME, isid=isid + 10,
                           ImmediateData='No', InitialR2T='Yes') == 0, f'login {isid}')
        peer.send(wire.scsi_command(cdb, 1, 1, 16 * MIB, write=True))
        peers.append(peer)
    time.sleep(2)
    grown = daemon.resident_bytes() - before
    t.say(f'{grown / MIB:.0f} MiB more with 1000 writes of 16 MiB started')
    t.check(grown < 1400 * MIB, f'{grown} bytes more')
    daemon.require_alive()
    for peer in peers:
        peer.close()
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 4 0 1M', '-c', 'read -P 4 0 1M', daemon.url(),
          seconds=60)
