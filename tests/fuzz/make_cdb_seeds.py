#!/usr/bin/env python3
"""Writes corpus/cdb: one small program of commands for each family, as cdb_fuzz.cc reads them.

A command is: shape, row of the command table (its index), the CDB (its operation code is put in by
the target), allocation in 16 bytes (2), Data-Out length, and Data-Out. Rows are those of
src/scsi/command_table.cc; an index that has moved makes another command, never a wrong input.
"""
import pathlib

CORPUS = pathlib.Path(__file__).parent / 'corpus' / 'cdb'


def command(row, cdb, data_in=0, data_out=b'', shape=0):
    blocks = shape & 0x10
    length = len(data_out) // 512 if blocks else len(data_out)
    tail = (data_in >> 4).to_bytes(2, 'big') + bytes([length]) + data_out[:64]
    return bytes([shape, row]) + cdb + tail


def cdb(length, **at):
    raw = bytearray(length)
    for place, value in at.items():
        raw[int(place[1:])] = value
    return bytes(raw)


READY = command(0, cdb(6))  # Takes the unit attention.
SEEDS = {
    'ready_and_sense': READY + command(1, cdb(6, b4=252), 256),
    'inquiry': command(4, cdb(6, b4=96), 96) + command(4, cdb(6, b1=1, b2=0x83, b4=255), 256),
    'mode_sense': (
        READY
        + command(8, cdb(6, b2=0x3F, b4=192), 192)
        + command(23, cdb(10, b2=8, b8=64), 64)),
    'mode_select': READY + command(5, cdb(6, b1=0x10, b4=4), 0, bytes(4)),
    'reserve_release': (
        READY + command(6, cdb(6)) + command(0, cdb(6), shape=1) + command(7, cdb(6))),
    'start_stop': (
        READY
        + command(9, cdb(6, b4=0))
        + command(9, cdb(6, b4=1))
        + command(10, cdb(6, b4=1))),
    'capacity': READY + command(11, cdb(10), 16) + command(31, cdb(16, b13=32), 32),
    'read': READY + command(12, cdb(10, b8=1), 512) + command(24, cdb(16, b13=1), 512),
    'write': (
        READY
        + command(13, cdb(10, b8=1), 0, bytes(512), 0x10)
        + command(25, cdb(16, b13=1), 0, bytes(512), 0x10)),
    'write_and_verify': READY + command(14, cdb(10, b8=1), 0, bytes(512), 0x10),
    'verify': READY + command(15, cdb(10, b1=2, b8=1), 0, bytes(512), 0x10),
    'prefetch_and_flush': READY + command(16, cdb(10, b8=1)) + command(17, cdb(10)),
    'write_same': READY + command(18, cdb(10, b8=4), 0, bytes(512), 0x10),
    'unmap': (
        READY + command(19, cdb(10, b8=24), 0,
                        bytes([0, 22, 0, 16, 0, 0, 0, 0]) + bytes(11) + b'\1' + bytes(4))),
    'lba_status': READY + command(32, cdb(16, b13=32), 32),
    'report_luns': command(33, cdb(12, b9=64), 64),
    'report_supported': READY + command(34, cdb(12, b9=128), 128) + command(35, cdb(12, b9=16), 16),
    'unknown_opcode': bytes([0x80]) + cdb(16, b0=0xC1) + bytes(3),
}

CORPUS.mkdir(parents=True, exist_ok=True)
for name, seed in SEEDS.items():
    (CORPUS / name).write_bytes(seed)
