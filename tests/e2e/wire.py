"""A few iSCSI PDUs by hand (RFC 7143 section 11), for peers that do not behave."""
import socket
import struct

LOGIN_REQUEST, LOGIN_RESPONSE, NOP_OUT, NOP_IN, SCSI_COMMAND = 0x43, 0x23, 0x40, 0x20, 0x01
TASK_MANAGEMENT_REQUEST, SCSI_RESPONSE, TASK_MANAGEMENT_RESPONSE = 0x42, 0x21, 0x22
DATA_IN, READY_TO_TRANSFER, ASYNC_MESSAGE, REJECT = 0x25, 0x31, 0x32, 0x3f
OPERATIONAL, FULL_FEATURE = 1, 3


def text(**keys):
    return b''.join(f'{key}={value}'.encode() + b'\0' for key, value in keys.items())


def pairs(data):
    """{key: value} of a response's text."""
    split = (pair.partition('=') for pair in data.decode().split('\0') if pair)
    return {key: value for key, _, value in split}


def login_request(data, stage=OPERATIONAL, next_stage=FULL_FEATURE, transit=True, isid=1,
                  tsih=0, cid=0, cmd_sn=1):
    flags = (0x80 if transit else 0) | stage << 2 | (next_stage if transit else 0)
    header = struct.pack('>BBBB', LOGIN_REQUEST, flags, 0, 0)
    header += struct.pack('>I', len(data))  # TotalAHSLength is 0.
    header += bytes([0x80, 0, 0]) + isid.to_bytes(3, 'big') + struct.pack('>H', tsih)
    header += struct.pack('>IHHII', 0, cid, 0, cmd_sn, 0) + bytes(16)
    return header + data + bytes(-len(data) % 4)


def scsi_command(cdb, tag, cmd_sn, length=0, read=False, write=False, data=b'', final=True,
                 exp_stat_sn=0, lun=bytes(8)):
    flags = 0x80 * final | 0x40 * read | 0x20 * write | 1
    header = struct.pack('>BBHI', SCSI_COMMAND, flags, 0, len(data)) + lun
    header += struct.pack('>IIII', tag, length, cmd_sn, exp_stat_sn) + cdb.ljust(16, b'\0')
    return header + data + bytes(-len(data) % 4)


def data_out(tag, transfer_tag, data_sn, offset, data, final, lun=bytes(8)):
    header = struct.pack('>BBHI', 0x05, 0x80 * final, 0, len(data)) + lun
    header += struct.pack('>IIIIIIII', tag, transfer_tag, 0, 0, 0, data_sn, offset, 0)
    return header + data + bytes(-len(data) % 4)


def task_management(function, tag, cmd_sn, lun=bytes(8), task=0xffffffff, ref_cmd_sn=0):
    header = struct.pack('>BBHI', TASK_MANAGEMENT_REQUEST, 0x80 | function, 0, 0) + lun
    return header + struct.pack('>IIIII', tag, task, cmd_sn, 0, ref_cmd_sn) + bytes(12)


def nop_out(tag, cmd_sn, exp_stat_sn=0, data=b'', transfer_tag=0xffffffff):
    header = struct.pack('>BBHI', NOP_OUT, 0x80, 0, len(data)) + bytes(8)
    header += struct.pack('>IIII', tag, transfer_tag, cmd_sn, exp_stat_sn) + bytes(16)
    return header + data + bytes(-len(data) % 4)


class Peer:
    """A TCP connection that speaks as much iSCSI as a test wants."""

    def __init__(self, address, seconds=20):
        self.socket = socket.create_connection(address, timeout=seconds)

    def send(self, data):
        self.socket.sendall(data)

    def receive_exactly(self, count):
        data = b''
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self):
        """(header, data) of the next PDU without digests."""
        header = self.receive_exactly(48)
        length = int.from_bytes(header[5:8], 'big')
        data = self.receive_exactly(length + -length % 4)
        return header, data[:length]

    def login(self, target, initiator='iqn.2026-11.org.sandbay:e2e', isid=1, **keys):
        """Logs in without CHAP; the response's status class and detail."""
        keys = {'InitiatorName': initiator, 'SessionType': 'Normal', 'TargetName': target,
                'AuthMethod': 'None', **keys}
        security = {key: keys.pop(key) for key in
                    ('InitiatorName', 'SessionType', 'TargetName', 'AuthMethod')}
        self.send(login_request(text(**security), stage=0, next_stage=OPERATIONAL, isid=isid))
        header, data = self.receive()
        self.answers = pairs(data)
        status = header[36] << 8 | header[37]
        if status != 0:
            return status
        keys = {'HeaderDigest': 'None', 'DataDigest': 'None', **keys}
        self.send(login_request(text(**keys), isid=isid))
        header, data = self.receive()
        self.stat_sn = int.from_bytes(header[24:28], 'big')
        self.exp_cmd_sn = int.from_bytes(header[28:32], 'big')
        self.max_cmd_sn = int.from_bytes(header[32:36], 'big')
        self.answers = pairs(data)
        return header[36] << 8 | header[37]

    def closed(self):
        """Waits for the other side's end of the connection."""
        try:
            while self.socket.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.socket.close()
