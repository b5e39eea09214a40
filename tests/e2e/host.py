"""A host written by hand: one session of one connection, with its numbers, its task tags and what
SCSI says in it. It does as told, also what no real initiator would, and takes no standard for
granted: whoever looks at an answer gets all of it.
"""
import struct

import harness
import wire

ME = 'iqn.2026-11.org.sandbay:e2e-me'
GOOD, CHECK_CONDITION, BUSY, RESERVATION_CONFLICT = 0x00, 0x02, 0x08, 0x18
NO_TRANSFER_TAG = 0xffffffff
BLOCK = 512
MOST_IMMEDIATE = 65536  # FirstBurstLength by default.
PIECE = 65536           # No target here takes less in one PDU.

# RFC 7143 section 11.5.1.
ABORT_TASK, ABORT_TASK_SET, CLEAR_TASK_SET, LOGICAL_UNIT_RESET, WARM_RESET = 1, 2, 4, 5, 6
COMPLETE, NO_SUCH_TASK = 0, 1

TEST_UNIT_READY = bytes(6)


def lun_field(number):
    """Peripheral addressing below 256, flat space from there on (SAM-5 clause 4.7)."""
    return struct.pack('>H', number if number < 256 else 0x4000 | number) + bytes(6)


def inquiry(length=255, page=None):
    return struct.pack('>BBBHB', 0x12, page is not None, page or 0, length, 0)


def read_10(lba, blocks):
    return struct.pack('>BBIBHB', 0x28, 0, lba, 0, blocks, 0)


def write_10(lba, blocks):
    return struct.pack('>BBIBHB', 0x2a, 0, lba, 0, blocks, 0)


def read_capacity_16(length=32):
    return struct.pack('>BBQIBB', 0x9e, 0x10, 0, length, 0, 0)


def unmap(runs):
    """(CDB, parameter list) for [(LBA, blocks), …]."""
    descriptors = b''.join(struct.pack('>QII', lba, blocks, 0) for lba, blocks in runs)
    data = struct.pack('>HHI', 6 + len(descriptors), len(descriptors), 0) + descriptors
    return struct.pack('>BBIBHB', 0x42, 0, 0, 0, len(data), 0), data


class Reply:
    """A command's status, data and sense; `flags` of the PDU that brought the status."""

    def __init__(self, header, data):
        self.header, self.status, self.flags = header, header[3], header[1]
        self.data = data if header[0] & 0x3f == wire.DATA_IN else b''
        sense = b'' if self.data or len(data) < 2 else data[2:]
        if header[0] & 0x3f == wire.SCSI_RESPONSE and header[3] != CHECK_CONDITION:
            sense = b''
        self.sense = sense
        self.key = sense[2] & 0xf if len(sense) > 13 else 0
        self.additional = sense[12] << 8 | sense[13] if len(sense) > 13 else 0
        self.residual = int.from_bytes(header[44:48], 'big')

    @property
    def good(self):
        return self.status == GOOD

    def __repr__(self):
        return (f'status {self.status:#04x}, sense {self.key:x}/{self.additional:04x}, '
                f'{len(self.data)} bytes, residual {self.flags & 6}:{self.residual}')


class Host:
    def __init__(self, t, daemon, volume='disk', isid=1, name=ME, portal=None, seconds=20,
                 target=None, **keys):
        self.t = t
        self.peer = wire.Peer(portal or daemon.address(), seconds)
        target = target or harness.NAME_PREFIX + volume
        self.status = self.peer.login(target, name, isid=isid, **keys)
        self.cmd_sn, self.tag = 1, 1
        self.waiting = {}  # What came for other tags: [(header, data), …].
        self.writing = {}  # By tag: (LUN, data).
        t.check(self.status == 0, f'login to {volume}: status {self.status:#06x}')

    # PDUs -------------------------------------------------------------------------------------

    def _next_of(self, tag):
        while not self.waiting.get(tag):
            header, data = self.peer.receive()
            opcode = header[0] & 0x3f
            if opcode == wire.NOP_IN and header[20:24] != b'\xff\xff\xff\xff':
                self.peer.send(wire.nop_out(NO_TRANSFER_TAG, self.cmd_sn,
                                            transfer_tag=int.from_bytes(header[20:24], 'big')))
                continue
            self.t.check(opcode != wire.REJECT, f'a Reject came: {header.hex()} {data.hex()}')
            owner = int.from_bytes(header[16:20], 'big')
            self.waiting.setdefault(owner, []).append((header, data))
        return self.waiting[tag].pop(0)

    def next_event(self):
        """The event of the next asynchronous message."""
        while True:
            header, _ = self._next_of(NO_TRANSFER_TAG)
            if header[0] & 0x3f == wire.ASYNC_MESSAGE:
                return header[36]

    def start(self, cdb, length=0, read=False, data=b'', lun=0):
        """Sends a command, with as much of `data` as may go with it; its tag."""
        tag, self.tag = self.tag, self.tag + 1
        self.peer.send(wire.scsi_command(cdb, tag, self.cmd_sn, length or len(data), read=read,
                                         write=bool(data), data=data[:MOST_IMMEDIATE],
                                         lun=lun_field(lun)))
        self.cmd_sn += 1
        if data:
            self.writing[tag] = (lun, data)
        return tag

    def _send_data(self, tag, r2t):
        lun, data = self.writing[tag]
        transfer_tag, offset, length = (int.from_bytes(r2t[at:at + 4], 'big')
                                        for at in (20, 40, 44))
        for number, at in enumerate(range(offset, offset + length, PIECE)):
            end = min(at + PIECE, offset + length)
            self.peer.send(wire.data_out(tag, transfer_tag, number, at, data[at:end],
                                         end == offset + length, lun_field(lun)))

    def finish(self, tag):
        """Waits for the command's end."""
        received = b''
        while True:
            header, data = self._next_of(tag)
            opcode = header[0] & 0x3f
            if opcode == wire.READY_TO_TRANSFER:
                self._send_data(tag, header)
                continue
            if opcode == wire.SCSI_RESPONSE:
                reply = Reply(header, data)
                reply.data = received
                return reply
            self.t.check(opcode == wire.DATA_IN, f'opcode {opcode:#x} for a command')
            received += data
            if header[1] & 1:
                return Reply(header, received)

    def command(self, cdb, length=0, data=b'', lun=0):
        return self.finish(self.start(cdb, length, read=length > 0, data=data, lun=lun))

    def good(self, cdb, length=0, data=b'', lun=0):
        """The data of a command that must succeed."""
        reply = self.command(cdb, length, data, lun)
        self.t.check(reply.good, f'{bytes(cdb).hex()}: {reply!r}')
        return reply.data

    def attentions(self, lun=0):
        """TEST UNIT READY until GOOD; the unit attentions on the way."""
        seen = []
        for _ in range(10):
            reply = self.command(TEST_UNIT_READY, lun=lun)
            if reply.good:
                return seen
            self.t.check(reply.key == 6, f'TEST UNIT READY: {reply!r}')
            seen.append(reply.additional)
        raise harness.Failed(f'LUN {lun} is not ready: {seen}')

    def write(self, lba, data, lun=0):
        return self.command(write_10(lba, len(data) // BLOCK), data=data, lun=lun)

    def read(self, lba, blocks, lun=0):
        return self.command(read_10(lba, blocks), blocks * BLOCK, lun=lun)

    def send_management(self, function, lun=0, task=NO_TRANSFER_TAG, ref_cmd_sn=0):
        tag, self.tag = self.tag, self.tag + 1
        self.peer.send(wire.task_management(function, tag, self.cmd_sn, lun_field(lun), task,
                                            ref_cmd_sn))
        return tag

    def managed(self, tag):
        header, _ = self._next_of(tag)
        self.t.check(header[0] & 0x3f == wire.TASK_MANAGEMENT_RESPONSE, header.hex())
        return header[2]

    def manage(self, function, lun=0, task=NO_TRANSFER_TAG, ref_cmd_sn=0):
        """The response code of a task management function."""
        return self.managed(self.send_management(function, lun, task, ref_cmd_sn))

    def ping(self, data=b'are you there'):
        tag, self.tag = self.tag, self.tag + 1
        self.peer.send(wire.nop_out(tag, self.cmd_sn, data=data))
        header, echo = self._next_of(tag)
        self.t.check(header[0] & 0x3f == wire.NOP_IN and echo == data, f'no echo: {header.hex()}')

    def close(self):
        self.peer.close()


def luns_of(data):
    """The numbers in REPORT LUNS data."""
    return [int.from_bytes(data[at:at + 2], 'big') & 0x3fff for at in range(8, len(data), 8)]


def report_luns(length=4096):
    return struct.pack('>BBBBBBIBB', 0xa0, 0, 0, 0, 0, 0, length, 0, 0)


def designators(page):
    """[(code set, association, type, value)] of VPD page 83h."""
    found, at = [], 4
    while at < len(page):
        length = page[at + 3]
        found.append((page[at] & 0xf, page[at + 1] >> 4 & 3, page[at + 1] & 0xf,
                      page[at + 4:at + 4 + length]))
        at += 4 + length
    return found
