"""Runs a command on its own terminal, and types into it.

on_terminal.py COMMAND... reads a script on stdin: a JSON list of [expected, typed] pairs. After
the last pair, it reads the output to the end. It prints the terminal's output, and exits with the
command's exit code.
"""

import json
import os
import pty
import signal
import sys


def main():
    # An expected text may never appear.
    signal.alarm(60)
    steps = json.load(sys.stdin)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    shown = b""

    def read():
        try:
            return os.read(terminal, 4096)
        except OSError:  # the last process at the terminal has ended
            return b""

    seen = 0
    for expected, typed in steps:
        while expected.encode() not in shown[seen:]:
            more = read()
            if not more:
                break
            shown += more
        seen = shown.find(expected.encode(), seen) + len(expected)
        os.write(terminal, typed.encode())
    while more := read():
        shown += more
    sys.stdout.buffer.write(shown)
    sys.stdout.flush()
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


main()
