"""Runs a command on a terminal of its own and types at it.

on_terminal.py COMMAND... with a script on stdin: one JSON list of [expected, typed] pairs. The
text after the last pair is read to the end. Prints what the terminal showed; exits as
the command did.
"""

import json
import os
import pty
import signal
import sys


def main():
    # What is waited for may never be shown.
    signal.alarm(60)
    steps = json.load(sys.stdin)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    shown = b""

    def read():
        try:
            return os.read(terminal, 4096)
        except OSError:  # the last one on the other side has gone
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
