"""The tools of sg3_utils against a target, by sg_shim.cc: without a SCSI device of the kernel."""
import os
import socket
import struct
import threading



class Device:
    """A host's LUN as a device for these tools, until the test ends."""

    def __init__(self, t, host, lun=0):
        self.t, self.host, self.lun = t, host, lun
        self.path = t.path(f'sg{id(self)}')
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(1)
        t.at_end(self.listener.close)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                while self._pass_on(peer):
                    pass

    def _pass_on(self, peer):
        head = peer.recv(12, socket.MSG_WAITALL)
        if len(head) < 12:
            return False
        cdb_length, out_length, in_length = struct.unpack('=III', head)
        cdb = peer.recv(cdb_length, socket.MSG_WAITALL)
        data = peer.recv(out_length, socket.MSG_WAITALL) if out_length else b''
        reply = self.host.command(cdb, in_length, data, self.lun)
        peer.sendall(struct.pack('=III', reply.status, len(reply.sense), len(reply.data)) +
                     reply.sense + reply.data)
        return True

    def run(self, tool, *words, ok=True):
        """The tool's output; the device's name is added to its words."""
        self.t.need(tool)
        shim = self.t.program('sg-shim.so')
        environment = dict(os.environ, LD_PRELOAD=shim, SANDBAY_SG=self.path)
        done = self.t.run(tool, *words, '/dev/sandbay', ok=ok, env=environment)
        return done.stdout if ok else done
