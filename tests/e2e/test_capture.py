"""What an independent dissector makes of our PDUs."""
import os
import re
import time

import harness
import host
from raid_lab import faults


def cut_by_the_initiator(frame):
    """QEMU asks for 64 bytes of a VPD page first, to learn its length; the dissector of SCSI, not
    that of iSCSI, misses the rest."""
    return ('[Malformed Packet: SCSI]' in frame and 'Inquiry Response Data' in frame and
            'DataSegmentLength: 64 ' in frame)


class Capture:
    """The traffic of a daemon's portal, as tshark reads it afterwards."""

    def __init__(self, t, daemon):
        t.need('tshark', 'dumpcap')
        self.t, self.file = t, t.path('session.pcapng')
        port = daemon.address()[1]
        self.read = ('tshark', '-r', self.file, '-d', f'tcp.port=={port},iscsi')
        self.dumpcap = t.start('dumpcap', '-q', '-i', 'lo', '-f', f'tcp port {port}', '-s', '0',
                               '-B', '64', '-w', self.file, log='dumpcap.log')
        deadline = time.monotonic() + 10
        while not os.path.exists(self.file):
            if self.dumpcap.poll() is not None or time.monotonic() > deadline:
                with open(t.path('dumpcap.log'), encoding='utf-8', errors='replace') as stream:
                    raise harness.Skipped(f'capturing is not permitted: {stream.read()[-300:]}')
            time.sleep(0.05)
        time.sleep(0.5)

    def end(self):
        time.sleep(1)
        self.dumpcap.terminate()
        self.dumpcap.wait(20)

    def fields(self, which, *names):
        """[[value of each field, …] of each frame that fits]; a field may have several."""
        words = [word for name in names for word in ('-e', name)]
        lines = self.t.run(*self.read, '-Y', which, '-T', 'fields', *words).stdout.splitlines()
        return [line.split('\t') for line in lines if not line.startswith('Running as user')]


def test_tshark_dissects_without_malformed_pdus(t):
    """A session with every burst shape, digests included, captured on loopback."""
    t.need('tshark', 'dumpcap', 'qemu-io', 'iscsi-ls')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}])
    capture = Capture(t, daemon)
    t.run('iscsi-ls', '-s', f'iscsi://{daemon.portal}')
    t.run('iscsi-inq', daemon.url())
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 512', '-c', 'write -P 2 4096 1M',
          '-c', 'read -P 2 4096 1M', '-c', 'flush', '-c', 'discard 0 64k', daemon.url())
    capture.end()
    bad = t.run(*capture.read, '-Y', '_ws.malformed || iscsi.opcode.invalid', '-V').stdout
    frames = [frame for frame in re.split(r'(?m)^(?=Frame \d+: )', bad) if 'iSCSI' in frame]
    unexplained = [frame for frame in frames if not cut_by_the_initiator(frame)]
    t.check(not unexplained, f'tshark finds malformed PDUs:\n{"".join(unexplained)[:3000]}')
    opcodes = t.run(*capture.read, '-Y', 'iscsi', '-T', 'fields', '-e', 'iscsi.opcode').stdout
    seen = set(re.findall(r'0x[0-9a-f]+', opcodes))
    wanted = {'0x01', '0x03', '0x04', '0x06', '0x21', '0x23', '0x24', '0x25', '0x26'}
    t.check(wanted <= seen, f'PDUs not seen: {wanted - seen}, seen {sorted(seen)}')
    t.say(f'{len(opcodes.split())} frames with PDUs of {len(seen)} kinds, none malformed')


def seen_of(capture):
    """How often each fault of the test below is in the capture."""
    def frames(which, *names):
        return capture.fields(which, *(names or ('frame.number',)))

    status = 'iscsi.scsiresponse.status'
    residual = 'iscsi.scsidata.readresidualcount'
    r2ts = frames('iscsi.opcode == 0x31', 'iscsi.desireddatalength', 'iscsi.bufferOffset')
    asked = [int(each[0], 0) for each in r2ts]
    offsets = [int(each[1], 0) for each in r2ts]
    numbers = [int(number, 0) for each in frames('iscsi.opcode == 0x21', 'iscsi.statsn')
               for number in each[0].split(',')]
    # All PDUs here that use a StatSN up: reads are one Data-In, and no ping is the target's own.
    used = {int(number, 0)
            for each in frames('tcp.stream == 0 && iscsi.statsn && iscsi.opcode != 0x31',
                               'iscsi.statsn') for number in each[0].split(',')}
    return {
        'busy': len(frames(f'{status} == 0x08')),
        'check': len(frames(f'{status} == 0x02 && scsi.sns.asc == 0x11 && scsi.sns.key == 3')),
        'short': len(frames(f'{residual} == 777')),
        'small': asked.count(3001),
        'disorder': sum(1 for at in range(1, len(offsets))
                        if offsets[at] and offsets[at] < offsets[at - 1]) or
                    sum(1 for at in range(1, len(offsets)) if offsets[at] < offsets[at - 1]) - 2,
        'twice': len(numbers) - len(set(numbers)),
        'gap': max(used) - min(used) + 1 - len(used),
        'fragment': int(len(frames('tcp.len == 1')) > 5),
        'event': len(frames('iscsi.asyncevent == 4')),
        'drop': len(frames('tcp.flags.reset == 1')),
        'refused515': len(frames('iscsi.login.status == 0x0203')),
        'refused770': len(frames('iscsi.login.status == 0x0302')),
    }


def test_tshark_reads_what_the_journal_says(t):
    """Faults one after another; each firing of the journal is in the capture."""
    daemon = t.daemon([{'name': 'v', 'size': '16MiB'}], extra=faults())
    capture = Capture(t, daemon)
    one = host.Host(t, daemon, 'v')
    one.attentions()
    data = bytes(range(256)) * 512
    fired = {}

    def under(name, rule, work):
        daemon.sandbay('fault', 'add', f'id={name}', *rule.split())
        result = work()
        daemon.sandbay('fault', 'clear', name)
        firings = daemon.sandbay_json('fault', 'journal')['firings']
        fired[name] = sum(1 for each in firings if each['rule'] == name)
        return result

    def write():
        one.good(host.write_10(0, 256), data=data)

    def ready():
        return one.command(host.TEST_UNIT_READY)

    under('busy', 'at=lun count=3 do=busy', lambda: [ready() for _ in range(4)])
    under('check', 'at=lun count=2 do=check key=3 code=11/00', lambda: [ready() for _ in range(3)])
    under('short', 'at=session opcode=0x28 count=1 do=residual bytes=777',
          lambda: one.command(host.read_10(0, 8), 4096))
    under('small', 'at=session count=2 do=r2t.small bytes=3001', write)
    under('disorder', 'at=session count=1 do=r2t.disorder', write)
    under('twice', 'at=session pdu=scsi-response count=1 do=pdu.dup', ready)
    one.ping()
    gap = under('gap', 'at=session count=1 do=statsn.gap', lambda: one.start(host.TEST_UNIT_READY))
    ready()
    t.check(not one.waiting.get(gap), 'its status is withheld')
    under('fragment', 'at=session pdu=data-in count=1 do=fragment',
          lambda: one.good(host.read_10(0, 1), 512))
    under('event', 'at=session count=1 do=async how=negotiation wait=9s', ready)
    under('drop', 'at=session count=1 do=drop', lambda: one.start(host.TEST_UNIT_READY))
    for status in (0x0203, 0x0302):
        peer = host.wire.Peer(daemon.address())
        under(f'refused{status}', f'at=link count=1 do=login.reject status={status:#06x}',
              lambda: peer.login(harness.NAME_PREFIX + 'v', host.ME))
        peer.close()
    capture.end()

    seen = seen_of(capture)
    for name, count in fired.items():
        t.check(seen[name] == count > 0, f'{name}: {count} in the journal, {seen[name]} captured')
