#!/usr/bin/env python3
"""Runs a command on a terminal of its own, presses Ctrl-C when it says "up", and says how it ended.

  tests/e2e/on_a_terminal.py COMMAND…
"""
import os
import pty
import signal
import sys
import time

child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
said, pressed = b'', False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:  # The terminal's last user has ended.
        break
    if not part:
        break
    said += part
    if b'up' in said and not pressed:
        pressed = True
        time.sleep(0.1)
        os.write(terminal, b'\x03')
print(said.decode(errors='replace').replace('\r', ''))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(f'ended with {code}')
