"""Builds the test programs of a combined copy, and runs them."""
import contextlib
import json
import os
import shutil
import sys

from .combine import VARIABLE
from .workspace import limited

SELECTORS = ("--test", "--bin")
SIMULATOR = ("--release", "-p", "leasehold-sim")


class Programs:
    """The programs that cargo has built from the copy."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.simulator = os.path.join(workspace.target, "release", "leasehold-sim")
        # For each selection of a test program, its file and the folder of its package.
        self.built = {}

    def build(self, checks):
        """Builds the programs for these checks. Returns the compiler's errors, or none on success."""
        groups = {}
        for check in checks:
            if check.is_simulator:
                groups.setdefault(SIMULATOR, set())
            else:
                common, selected = selection(check)
                groups.setdefault(common, set()).add(selected)
        for common, selected in sorted(groups.items()):
            errors = self.build_group(common, selected)
            if errors:
                return errors
        return []

    def build_group(self, common, selected):
        """Builds the programs of one package with one choice of features."""
        verb = ["build"] if common == SIMULATOR else ["test", "--no-run"]
        words = [word for selector in sorted(selected) for word in selector]
        status, out = self.workspace.build(*verb, "--message-format=json", *common, *words)
        messages = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if status != 0:
            errors = errors_of(messages)
            return errors or sys.exit("cargo fails without an error in the code: " + out[-2000:])
        for message in messages:
            if message["reason"] == "compiler-artifact" and message["profile"]["test"]:
                self.note(common, message)
        return []

    def note(self, common, message):
        """Records the path of a test program."""
        target = message["target"]
        kind, name = target["kind"][0], target["name"]
        selected = ("--" + kind, name) if kind in ("test", "bin") else ("--lib",)
        folder = os.path.dirname(message["manifest_path"])
        self.built[common, selected] = message["executable"], folder

    def run(self, check, number=0, replacements=(), arguments=None):
        """Runs a check with the mutant that has this number, and returns its status and output."""
        if check.is_simulator:
            binary, folder = self.simulator, self.workspace.folder
        else:
            binary, folder = self.built[selection(check)]
        environment = dict(os.environ, CARGO_MANIFEST_DIR=folder)
        environment.pop(VARIABLE, None)
        if number:
            environment[VARIABLE] = str(number)
        with replaced(binary, number, replacements, self.workspace.target) as program:
            if program is None:
                return None, "the text of the Lua file is not in the program"
            arguments = arguments or check.program_arguments()
            return limited([program, *arguments], cwd=folder, env=environment)


def selection(check):
    """Returns the arguments that all programs of a package share, and the program's own."""
    common, selected, words = [], ("--lib",), iter(check.cargo_arguments())
    for word in words:
        if word in SELECTORS:
            selected = word, next(words)
        elif word != "--lib":
            common.append(word)
    return tuple(common), selected


def errors_of(messages):
    """Returns the places of each error, the primary places first."""
    errors = []
    for message in messages:
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            spans = all_spans(message["message"])
            spans.sort(key=lambda span: not span["is_primary"])
            errors.append([(span["file_name"], span["line_start"], span["line_end"])
                           for span in spans])
    return [places for places in errors if places]


def all_spans(diagnostic):
    """Returns the spans of a diagnostic, including spans of its notes and of macro calls."""
    spans = list(diagnostic["spans"])
    for child in diagnostic["children"]:
        spans += [dict(span, is_primary=False) for span in all_spans(child)]
    for span in spans:
        if span["expansion"]:
            spans.append(dict(span["expansion"]["span"], is_primary=False))
    return spans


@contextlib.contextmanager
def replaced(binary, number, replacements, target):
    """Yields the program with these bytes replaced, or None if it does not contain them."""
    if not replacements:
        yield binary
        return
    with contextlib.ExitStack() as stack:
        # The tests of the command line start the program with that name.
        folder = os.path.join(target, f"{number:05}")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.makedirs(folder)
        command = os.path.join(target, "debug", "leasehold")
        # The name of this folder must be as long as `debug`.
        other_command = os.path.join(folder, "leasehold")
        copies = [copy_replaced(binary, os.path.join(folder, os.path.basename(binary)),
                                replacements, (command.encode(), other_command.encode()))]
        if os.path.exists(command):
            copies.append(copy_replaced(command, other_command, replacements))
        yield os.path.join(folder, os.path.basename(binary)) if any(copies) else None


def copy_replaced(source, target, replacements, *others):
    """Copies a program with bytes replaced. Returns whether it contained all of `replacements`."""
    with open(source, "rb") as file:
        text = file.read()
    found = all(old in text for old, _ in replacements)
    for old, new in [*replacements, *others]:
        assert len(old) == len(new), (source, target)
        text = text.replace(old, new)
    with open(target, "wb") as file:
        file.write(text)
    shutil.copymode(source, target)
    return found
