"""Maintains the copy of the code that is broken, and runs commands there."""
import contextlib
import filecmp
import os
import re
import shutil
import signal
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.join(ROOT, "target", "mutants")
LIMIT_S = 300
# This is enough for a full build on a busy machine.
BUILD_LIMIT_S = 1800


class Workspace:
    """A copy of the code in its own folder.

    Unless a target directory is given, each copy has its own, because cargo could mistake a program
    that was built from one copy for the same program of another copy.
    """

    def __init__(self, name, target=None):
        self.folder = os.path.join(FOLDER, name)
        self.target = target or os.path.join(FOLDER, name + "-build")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def write(self, name, text):
        """Writes the text only if it differs, because cargo rebuilds files that have a new time."""
        path = self.path(name)
        if not os.path.exists(path) or self.read(name) != text:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)

    def restore(self, except_for=()):
        """Makes the copy equal to the code again, except for the files in `except_for`."""
        names = {name for name in source_names() if not name.startswith("mutants/")}
        for folder, _, files in os.walk(self.folder):
            for file in files:
                path = os.path.join(folder, file)
                if os.path.relpath(path, self.folder) not in names:
                    os.remove(path)
        for name in names - set(except_for):
            source, target = os.path.join(ROOT, name), self.path(name)
            if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)

    def cargo(self, *arguments, limit_s=LIMIT_S):
        """Runs cargo in the copy and returns its status and output."""
        # The simulator is built with optimisations. Incremental compilation saves time, because only
        # one file differs from the last build.
        environment = dict(os.environ, CARGO_TARGET_DIR=self.target, CARGO_INCREMENTAL="1")
        return limited(["cargo", *arguments], limit_s, cwd=self.folder, env=environment)

    def build(self, *arguments):
        return self.cargo(*arguments, limit_s=BUILD_LIMIT_S)


def source_names(*places):
    """Returns the names of the files in these places, or of all files."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                            "--", *places], cwd=ROOT, capture_output=True, check=True).stdout
    return sorted(name for name in names.decode().split("\0")
                  if os.path.isfile(os.path.join(ROOT, name)))


def limited(command, limit_s=LIMIT_S, **options):
    """Runs a command for at most this time, and returns its status and output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace",
                          stderr=subprocess.STDOUT, start_new_session=True, **options) as process:
        try:
            out, _ = process.communicate(timeout=limit_s)
            return process.returncode, out
        except subprocess.TimeoutExpired:
            return None, f"no end within {limit_s} s"
        finally:
            # Processes that the command has started do not end together with the command.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def last_error(out):
    """Returns the first error line of cargo's output."""
    errors = re.findall(r"^error.*$", out, re.M)
    return errors[0] if errors else out.strip()[-200:]
