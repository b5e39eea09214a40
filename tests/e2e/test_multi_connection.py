"""Sessions of several connections (RFC 7143 section 4.2), by `sandbay load` in verify mode."""
import json
import select
import signal
import socket
import threading
import time

import harness
from raid_lab import Load

# On a quiet machine each block of this volume is read several times.
SECONDS, SIZE = 1, '16MiB'
CONNECTIONS = (1, 2, 4, 8)
REACTORS = (1, 2)


def data_verified(t, reactors):
    daemon = t.daemon([{'name': 'disk', 'size': SIZE}], reactors=reactors)
    for connections in CONNECTIONS:
        report = daemon.load('--connections', connections, '--verify', '--write',
                             '--read-percent', 50, '--queue-depth', 32,
                             '--duration', f'{SECONDS}s', '--warm-up', '0s', daemon.url())
        judge(t, report, f'{connections} connections, {reactors} reactors')
    t.check(not sessions(daemon), 'sessions are left over')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def judge(t, report, what):
    t.check(report['errors'] == 0 and report['miscompares'] == 0,
            f'{what}: {json.dumps(report)[:1500]}')
    t.check(report['blocks_verified'] > 0, f'{what}: nothing was verified')
    t.say(f'{what}: {report["blocks_verified"]} blocks verified')


def sessions(daemon):
    rows = daemon.sandbay_json('session', 'list')
    return rows.get('sessions', rows) if isinstance(rows, dict) else rows


def test_data_verified_with_one_reactor(t):
    """1, 2, 4 and 8 connections in a session."""
    data_verified(t, 1)


def test_data_verified_with_two_reactors(t):
    """1, 2, 4 and 8 connections in a session, on different reactors."""
    data_verified(t, 2)


class Proxy:
    """Passes TCP connections on and cuts the one it is told to, with a reset."""

    def __init__(self, t, to):
        self.to, self.pairs, self.doomed, self.running = to, [], None, True
        self.listener = socket.create_server(('127.0.0.1', harness.PORTS.take()))
        self.address = self.listener.getsockname()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        t.at_end(self.close)

    def serve(self):
        while self.running:
            if self.doomed:
                self.drop(self.doomed)
                self.doomed = None
            alive = [end for pair in self.pairs for end in pair]
            ready, _, _ = select.select([self.listener] + alive, [], [], 0.2)
            for end in ready:
                if end is self.listener:
                    client, _ = self.listener.accept()
                    self.pairs.append((client, socket.create_connection(self.to)))
                else:
                    self.move(end)

    def move(self, end):
        pair = next((pair for pair in self.pairs if end in pair), None)
        if pair is None:
            return
        try:
            data = end.recv(1 << 18)
            if data:
                (pair[1] if end is pair[0] else pair[0]).sendall(data)
                return
        except OSError:
            pass
        self.drop(pair)

    def drop(self, pair):
        if pair in self.pairs:
            self.pairs.remove(pair)
        for end in pair:
            end.close()

    def cut(self, number):
        """Both ends of the connection that came as `number` see a reset; the server does it."""
        pair = self.pairs[number]
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
        self.doomed = pair

    def close(self):
        self.running = False
        self.thread.join(5)
        for pair in list(self.pairs):
            self.drop(pair)
        self.listener.close()


def one_connection_killed(t, reactors):
    daemon = t.daemon([{'name': 'disk', 'size': SIZE}], reactors=reactors)
    for connections in (2, 4, 8):
        proxy = Proxy(t, daemon.address())
        load = Load(t, daemon.url(portal=f'127.0.0.1:{proxy.address[1]}'), '--connections',
                    str(connections), '--read-percent', '50', '--queue-depth', '16')
        t.until(lambda: len(proxy.pairs) >= connections, f'{connections} connections')
        time.sleep(0.5)
        load.require_running('before the cut')
        tsih = sessions(daemon)[0]['tsih']
        proxy.cut(connections - 1)
        t.until(lambda: proxy.doomed is None, 'the connection is cut')
        time.sleep(0.5)
        after = [row['tsih'] for row in sessions(daemon)]
        report = load.require_good()
        proxy.close()
        judge(t, report, f'{connections} connections, one cut, {reactors} reactors')
        t.check(report['connections_lost'] >= 1, 'no connection was lost')
        t.check(tsih in after, f'session {tsih} is gone after one connection of {connections} was')
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_one_connection_killed_under_load_with_one_reactor(t):
    """The session goes on over the others, and nothing is lost."""
    one_connection_killed(t, 1)


def test_one_connection_killed_under_load_with_two_reactors(t):
    """The same with connections on different reactors."""
    one_connection_killed(t, 2)


def test_digests_over_several_connections(t):
    """Header and data digests on every connection of a session."""
    daemon = t.daemon([{'name': 'disk', 'size': SIZE}], reactors=2)
    report = daemon.load('--connections', 4, '--verify', '--write', '--read-percent', 50,
                         '--key', 'HeaderDigest=CRC32C', '--key', 'DataDigest=CRC32C',
                         '--duration', f'{SECONDS}s', '--warm-up', '0s', daemon.url())
    judge(t, report, '4 connections with digests')


def test_connection_dropped_under_load(t):
    """`session drop --connection` ends one connection: the session goes on with the others."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}], reactors=2)
    load = t.start(t.program('sandbay'), 'load', '--connections', '4', '--duration', '10min',
                   daemon.url(), log='load.log')
    row = t.until(lambda: next((s for s in sessions(daemon) if len(s['connections']) == 4), None),
                  'a session of four connections')
    cid = row['connections'][1]['cid']
    t.check(f'(CID {cid})' in daemon.sandbay('session', 'list').stdout, 'the CIDs are not listed')
    daemon.sandbay('session', 'drop', row['tsih'], '--connection', cid)
    done = daemon.sandbay('session', 'drop', row['tsih'], '--connection', 999, ok=False)
    t.check('connection 999' in done.stdout, done.stdout)
    daemon.sandbay('session', 'negotiate', row['tsih'])
    t.check(row['tsih'] in [s['tsih'] for s in sessions(daemon)], 'the session has ended')
    daemon.sandbay('session', 'drop', row['tsih'], '--connection', row['connections'][2]['cid'],
                   '--logout-request', 5)
    t.check(row['tsih'] in [s['tsih'] for s in sessions(daemon)], 'the session has ended')
    time.sleep(0.5)
    t.check(load.poll() is None, 'the load ended too early')
    load.send_signal(signal.SIGINT)
    t.check(load.wait(60) == 0, 'the load has failed')


def test_session_dropped_under_load(t):
    """`session drop` ends a session at once; the daemon goes on and lets the initiator back in."""
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}], reactors=2)
    t.start(t.program('sandbay'), 'load', '--connections', '4', '--duration', '30s', daemon.url(),
            log='load.log')
    row = t.until(lambda: next(iter(sessions(daemon)), None), 'a session')
    daemon.sandbay('session', 'drop', row['tsih'])
    t.until(lambda: row['tsih'] not in [s['tsih'] for s in sessions(daemon)], 'the session ends')
    daemon.require_alive()
    t.run('iscsi-inq', daemon.url())


