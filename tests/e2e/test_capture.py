"""What an independent dissector makes of our PDUs."""
import os
import re
import time

import harness


def cut_by_the_initiator(frame):
    """QEMU asks for 64 bytes of a VPD page first, to learn its length; the dissector of SCSI, not
    that of iSCSI, misses the rest."""
    return ('[Malformed Packet: SCSI]' in frame and 'Inquiry Response Data' in frame and
            'DataSegmentLength: 64 ' in frame)


def test_tshark_dissects_without_malformed_pdus(t):
    """A session with every burst shape, digests included, captured on loopback."""
    t.need('tshark', 'dumpcap', 'qemu-io', 'iscsi-ls')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}])
    port, capture = daemon.address()[1], t.path('session.pcapng')
    dumpcap = t.start('dumpcap', '-q', '-i', 'lo', '-f', f'tcp port {port}', '-s', '0',
                      '-B', '64', '-w', capture, log='dumpcap.log')
    deadline = time.monotonic() + 10
    while not os.path.exists(capture):
        if dumpcap.poll() is not None or time.monotonic() > deadline:
            with open(t.path('dumpcap.log'), encoding='utf-8', errors='replace') as stream:
                raise harness.Skipped(f'capturing is not permitted here: {stream.read()[-300:]}')
        time.sleep(0.05)
    time.sleep(0.5)
    t.run('iscsi-ls', '-s', f'iscsi://{daemon.portal}')
    t.run('iscsi-inq', daemon.url())
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 1 0 512', '-c', 'write -P 2 4096 1M',
          '-c', 'read -P 2 4096 1M', '-c', 'flush', '-c', 'discard 0 64k', daemon.url())
    time.sleep(1)
    dumpcap.terminate()
    dumpcap.wait(20)
    common = ('tshark', '-r', capture, '-d', f'tcp.port=={port},iscsi')
    bad = t.run(*common, '-Y', '_ws.malformed || iscsi.opcode.invalid', '-V').stdout
    frames = [frame for frame in re.split(r'(?m)^(?=Frame \d+: )', bad) if 'iSCSI' in frame]
    unexplained = [frame for frame in frames if not cut_by_the_initiator(frame)]
    t.check(not unexplained, f'tshark finds malformed PDUs:\n{"".join(unexplained)[:3000]}')
    opcodes = t.run(*common, '-Y', 'iscsi', '-T', 'fields', '-e', 'iscsi.opcode').stdout
    seen = set(re.findall(r'0x[0-9a-f]+', opcodes))
    wanted = {'0x01', '0x03', '0x04', '0x06', '0x21', '0x23', '0x24', '0x25', '0x26'}
    t.check(wanted <= seen, f'PDUs not seen: {wanted - seen}, seen {sorted(seen)}')
    t.say(f'{len(opcodes.split())} frames with PDUs of {len(seen)} kinds, none malformed')
