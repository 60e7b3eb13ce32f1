"""Reads the mutants, and evaluates the output of their checks."""
import os
import re
import shlex
import sys
import tomllib

SEEDS = 60000


def read_mutants(folder):
    """Returns the mutants in all files of a folder, sorted by name."""
    mutants = []
    for place, _, files in os.walk(folder):
        for file in files:
            with open(os.path.join(place, file), "rb") as text:
                about = tomllib.load(text)
            default = about.pop("file", None)
            mutants += [Mutant(name, fields, default) for name, fields in about.items()]
    mutants.sort(key=lambda mutant: mutant.name)
    twice = [one.name for one, other in zip(mutants, mutants[1:]) if one.name == other.name]
    if twice:
        sys.exit(f"more than one mutant with the name: {', '.join(twice)}")
    return mutants


class Mutant:
    """A deliberate bug: what it breaks, which check must catch it, and the text before and after."""

    def __init__(self, name, fields, file):
        self.name = name
        self.what = fields["what"]
        self.check = Check(fields["caught-by"])
        changes = fields.get("changes", [fields])
        self.changes = [(change.get("file", file), change["before"], change["after"])
                        for change in changes]
        self.files = list(dict.fromkeys(file for file, _, _ in self.changes))

    def broken(self, workspace):
        """Returns the texts of the broken files, or None if the code has changed too much."""
        texts = {file: "\n" + workspace.read(file) for file in self.files
                 if os.path.isfile(workspace.path(file))}
        for file, before, after in self.changes:
            # Whole lines are compared, so that a change does not match in two places.
            if texts.get(file, "").count("\n" + before) != 1 or before == after:
                return None
            texts[file] = texts[file].replace("\n" + before, "\n" + after)
        return {file: text[1:] for file, text in texts.items()}

    def apply(self, workspace):
        """Breaks the copy, and returns the files' earlier texts, or None if the code has changed."""
        broken = self.broken(workspace)
        if broken is None:
            return None
        before = {file: workspace.read(file) for file in self.files}
        for file, text in broken.items():
            workspace.write(file, text)
        return before

    def fits(self, workspace):
        return self.broken(workspace) is not None


class Check:
    """The check that must catch a mutant: a test, or the simulator."""

    def __init__(self, text):
        self.text = text
        kind, *self.arguments = shlex.split(text)
        assert kind in ("sim", "test"), text
        self.is_simulator = kind == "sim"

    def cargo_arguments(self):
        """Returns the arguments that select the test program."""
        return self.arguments[:self.arguments.index("--")]

    def program_arguments(self, seeds=SEEDS):
        """Returns the arguments of the simulator or of the test program."""
        if self.is_simulator:
            return ["--seeds", str(seeds), *(self.arguments or ["--subject", "lock"])]
        return self.arguments[self.arguments.index("--") + 1:]

    def exists(self, sources):
        """Returns whether the test exists. `sources` has the words of each Rust source."""
        if self.is_simulator:
            return True
        *modules, function = self.arguments[-1].split("::")
        if "--lib" in self.arguments:
            # The path of a test in the library is the path of its file.
            sources = {path: words for path, words in sources.items()
                       if all(re.search(rf"/{module}(/|\.rs$)", path)
                              for module in modules if module != "tests")}
        return any(function in words for words in sources.values())

    def judge(self, out):
        """Returns what caught the mutant by this output, or None, and a line of the output."""
        if self.is_simulator:
            found = re.findall(r"^VIOLATION (.*)$", out, re.M)
            if found:
                return "simulator", found[-1]
            return None, "the simulator saw nothing: " + out.strip()[-200:]
        wanted = self.arguments[-1]
        if not re.search(rf"^test \S*{re.escape(wanted)}\S* \.\.\. FAILED$", out, re.M):
            return None, f"the test {wanted} did not fail: " + out.strip()[-200:]
        said = re.search(r"panicked at ([^\n]*)\n([^\n]*)", out)
        return f"test {wanted}", said.group(2) if said else "no word"

    def passes(self, status, out):
        """Returns whether the check has passed. A test that did not run has not passed."""
        if self.is_simulator:
            return status == 0 and self.judge(out)[0] is None
        return status == 0 and re.search(r"^test .* \.\.\. ok$", out, re.M) is not None
