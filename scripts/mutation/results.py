"""Prints the results, and keeps them in a file, from which a later run can continue."""
import hashlib
import os
import sys
import threading

from .workspace import ROOT, source_names

CAUGHT, MISSED, STALE, UNSURE = "caught", "MISSED", "STALE", "UNSURE"


class Results:
    """Collects one result (verdict) for each mutant."""

    def __init__(self, path=None):
        self.words = {}
        self.path = path
        self.lock = threading.Lock()
        if path:
            self.read(digest())

    def read(self, code):
        """Reads the verdicts of an earlier run. They are valid only if the code has not changed."""
        lines = []
        if os.path.exists(self.path):
            with open(self.path) as file:
                lines = file.read().splitlines()
        if not lines:
            self.append(f"code {code}")
        elif lines[0] != f"code {code}":
            sys.exit(f"{self.path} is of other code or other mutants; remove it to begin anew")
        self.words = dict(reversed(line.split(" ", 1)) for line in lines[1:])

    def append(self, line):
        with open(self.path, "a") as file:
            file.write(line + "\n")

    def say(self, mutant, word, more, seconds=None):
        """Prints a verdict and keeps it."""
        with self.lock:
            self.words[mutant.name] = word
            if self.path:
                self.append(f"{word} {mutant.name}")
            time = "" if seconds is None else f" ({seconds:.0f} s)"
            print(f"{word:7} {mutant.name}: {more}{time}", flush=True)

    def judge(self, mutant, found, said, seconds):
        """Prints and keeps the verdict of a check on a broken copy."""
        self.say(mutant, CAUGHT if found else MISSED,
                 f"{mutant.what}\n        by {found}: {said}", seconds)

    def left(self, mutants):
        """Returns the mutants without a verdict."""
        return [mutant for mutant in mutants if mutant.name not in self.words]

    def bad(self, mutants):
        """Returns the names of the mutants that were not caught."""
        return [mutant.name for mutant in mutants if self.words.get(mutant.name) != CAUGHT]


def digest():
    """Returns a digest of the code and of the mutants. Logs and files of results that are in the
    same folder do not affect it."""
    sums = hashlib.sha256()
    for name in source_names("crates", "mutants", "Cargo.toml", "Cargo.lock"):
        with open(os.path.join(ROOT, name), "rb") as file:
            sums.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return sums.hexdigest()[:16]
