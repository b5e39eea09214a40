"""Data through real clients: QEMU's block tools and filesystems on a LUN."""
import hashlib
import os
import random
import signal
import time

import harness

MIB = 1 << 20


def write_random_file(path, size, seed):
    generator = random.Random(seed)
    with open(path, 'wb') as stream:
        for _ in range(0, size, MIB):
            stream.write(generator.randbytes(min(MIB, size)))


def test_qemu_img_convert_to_and_from(t):
    """An image copied to the LUN and back is the same image, holes included."""
    t.need('qemu-img')
    daemon = t.daemon([{'name': 'disk', 'size': '96MiB'}])
    image = t.path('image.raw')
    write_random_file(image, 32 * MIB, 1)
    with open(image, 'r+b') as stream:
        stream.seek(64 * MIB)
        stream.write(random.Random(2).randbytes(3 * MIB + 4096))
        stream.truncate(96 * MIB)
    t.run('qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', image, daemon.url())
    t.run('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', image, daemon.url())
    back = t.path('back.raw')
    t.run('qemu-img', 'convert', '-f', 'raw', '-O', 'raw', daemon.url(), back)
    t.run('cmp', image, back)


def test_qemu_io_patterns(t):
    """Patterns of many sizes, zeroes, discards and flushes, read back in a session of its own."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '64MiB'}])
    writes, reads = [], []
    generator, offset = random.Random(3), 0
    for size in (512, 1024, 4096, 12288, 65536, 66048, 262144, 1048576, 4194304, 8388608):
        pattern = generator.randrange(1, 255)
        writes += ['-c', f'write -P {pattern} {offset} {size}']
        reads += ['-c', f'read -P {pattern} {offset} {size}']
        offset += size + 512 * generator.randrange(1, 9)
        offset -= offset % 512
    writes += ['-c', f'write -z {offset} 1M', '-c', 'flush',
               '-c', f'write -P 7 {offset + MIB} 2M', '-c', f'discard {offset + MIB} 1M',
               '-c', f'write -f -P 9 {offset + 3 * MIB} 64k']
    reads += ['-c', f'read -P 0 {offset} 1M', '-c', f'read -P 7 {offset + 2 * MIB} 1M',
              '-c', f'read -P 9 {offset + 3 * MIB} 64k']
    for commands in (writes, reads):
        output = t.run('qemu-io', '-f', 'raw', *commands, daemon.url()).stdout
        t.check('failed' not in output.lower(), output)


def test_raw_image_stays_raw(t):
    """A raw disk image served as a LUN is that image, byte for byte, before and after a write."""
    t.need('qemu-io', 'qemu-img')
    image = t.path('served.raw')
    write_random_file(image, 16 * MIB, 4)
    with open(image, 'rb') as stream:
        before = bytearray(stream.read())
    daemon = t.daemon([{'name': 'disk', 'file': image}])
    t.run('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', image, daemon.url())
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 165 5M 64k', '-c', 'flush', daemon.url())
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')
    before[5 * MIB:5 * MIB + 65536] = b'\xa5' * 65536
    with open(image, 'rb') as stream:
        t.check(stream.read() == before, 'the image differs in more than what was written')


def test_blocks_of_4096_bytes(t):
    """A LUN with 4096-byte logical blocks says so and keeps data."""
    t.need('iscsi-inq', 'iscsi-readcapacity16', 'qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '32MiB', 'block_size': 4096}])
    capacity = t.run('iscsi-readcapacity16', daemon.url()).stdout
    t.check('4096' in capacity, capacity)
    t.run('qemu-io', '-f', 'raw', '-c', 'write -P 3 4096 8192', '-c', 'read -P 3 4096 8192',
          daemon.url())


class Export:
    """The LUN as a file, through qemu-storage-daemon's FUSE export."""

    def __init__(self, t, url, name):
        self.t, self.file = t, t.path(name)
        open(self.file, 'wb').close()
        host_port, target, lun = url[len('iscsi://'):].split('/')
        self.process = t.start(
            'qemu-storage-daemon',
            '--blockdev', f'driver=iscsi,node-name=lun,transport=tcp,portal={host_port},'
                          f'target={target},lun={lun}',
            '--blockdev', 'driver=raw,node-name=disk,file=lun',
            '--export', f'type=fuse,id=e,node-name=disk,mountpoint={self.file},writable=on',
            log=f'{name}.log')

        def there():
            if self.process.poll() is not None:
                with open(t.path(f'{name}.log'), encoding='utf-8') as stream:
                    raise harness.Failed(f'qemu-storage-daemon ended: {stream.read()}')
            return os.path.getsize(self.file) > 0
        t.until(there, 'the FUSE export appears')

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Mount:
    """The file's filesystem, loop-mounted."""

    def __init__(self, t, file):
        self.t, self.point = t, file + '.mounted'
        os.makedirs(self.point, exist_ok=True)
        t.run('mount', '-o', 'loop', file, self.point)
        self.mounted = True
        t.at_end(self.unmount)

    def unmount(self):
        if self.mounted:
            self.mounted = False
            self.t.run('umount', self.point)
            # The loop device lets go of the file a moment after the unmount.
            time.sleep(0.2)


def fill(folder, size, seed):
    """Files of all sizes up to `size` bytes in all; {name: sha256}."""
    generator, sums, written, number = random.Random(seed), {}, 0, 0
    while written < size:
        length = min(generator.choice((0, 100, 4096, 70000, MIB, 5 * MIB)), size - written)
        name = f'd{number % 7}/f{number}'
        os.makedirs(os.path.join(folder, f'd{number % 7}'), exist_ok=True)
        data = generator.randbytes(length)
        with open(os.path.join(folder, name), 'wb') as stream:
            stream.write(data)
        sums[name] = hashlib.sha256(data).hexdigest()
        written, number = written + length, number + 1
    return sums


def sums_of(folder, names):
    sums = {}
    for name in names:
        with open(os.path.join(folder, name), 'rb') as stream:
            sums[name] = hashlib.sha256(stream.read()).hexdigest()
    return sums


def filesystem(t, make, check):
    t.need('qemu-storage-daemon', make[0], check[0], 'mount')
    if os.geteuid() != 0:
        raise harness.Skipped('mounting needs root')
    if not os.path.exists('/dev/fuse') or not os.path.exists('/dev/loop-control'):
        raise harness.Skipped('this machine has no /dev/fuse or no loop devices')
    daemon = t.daemon([{'name': 'disk', 'size': '512MiB'}])
    export = Export(t, daemon.url(), 'first')
    t.run(*make, export.file)
    try:
        mount = Mount(t, export.file)
    except harness.Failed as failure:
        if 'unknown filesystem type' in str(failure) or 'loop device' in str(failure):
            raise harness.Skipped(f'this kernel cannot mount it: {str(failure)[-200:]}')
        raise
    sums = fill(mount.point, 200 * MIB, 5)
    t.check(sums_of(mount.point, sums) == sums, 'checksums before the unmount')
    mount.unmount()
    export.close()
    # A new session; the page cache of the first export is gone with it.
    export = Export(t, daemon.url(), 'second')
    t.run(*check, export.file)
    mount = Mount(t, export.file)
    t.check(sums_of(mount.point, sums) == sums, 'checksums after the remount')
    mount.unmount()
    t.run(*check, export.file)
    export.close()
    t.check(daemon.terminate() == 0, 'SIGTERM ends with 0')


def test_ext4_filled_remounted_checked(t):
    filesystem(t, ('mkfs.ext4', '-q', '-F'), ('fsck.ext4', '-f', '-n'))


def test_xfs_filled_remounted_checked(t):
    filesystem(t, ('mkfs.xfs', '-q', '-f'), ('xfs_repair', '-n'))


def test_write_cache_switched_off_and_on(t):
    """WCE by MODE SELECT, as QEMU's writethrough mode relies on it: data is there either way."""
    t.need('qemu-io')
    daemon = t.daemon([{'name': 'disk', 'size': '16MiB', 'write_cache': False}])
    t.run('qemu-io', '-f', 'raw', '-t', 'writethrough', '-c', 'write -P 17 0 1M', daemon.url())
    daemon.kill()
    daemon.start()
    t.run('qemu-io', '-f', 'raw', '-c', 'read -P 17 0 1M', daemon.url())


test_ext4_filled_remounted_checked.minutes = 1
test_xfs_filled_remounted_checked.minutes = 1
