"""A suite as a user of `sandbay run -- pytest` has it: it knows SANDBAY_URL alone."""
import os
import subprocess

URL = os.environ['SANDBAY_URL']


def io(*commands):
    words = [word for command in commands for word in ('-c', command)]
    return subprocess.run(['qemu-io', '-f', 'raw', *words, URL], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=60).stdout


def test_a_new_volume_reads_zeros():
    assert 'read 1048576/1048576 bytes' in io('read -P 0 0 1M')


def test_the_volume_keeps_what_is_written():
    io('write -P 0x5a 4k 64k', 'flush')
    assert 'read 65536/65536 bytes' in io('read -P 0x5a 4k 64k')
