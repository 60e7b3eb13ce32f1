"""Reads a patch, and judges the output of its check."""
import os
import re
import shlex
import subprocess

SEEDS = 60000


class Mutant:
    """A patch, with the head that says what it breaks and which check must catch it."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path).removesuffix(".patch")
        with open(path) as file:
            text = file.read()
        head = dict(re.findall(r"^# ([A-Z][a-z ]+): (.*)$", text, re.M))
        self.files = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)
        self.what = head["What"]
        self.check = Check(head["Caught by"])

    def patch(self, workspace, *options):
        """Applies the patch to the copy, and returns whether that was possible."""
        command = ["patch", "--silent", "--force", "--strip=1", "--no-backup-if-mismatch",
                   "--reject-file=-", "--input", self.path, *options]
        return subprocess.run(command, cwd=workspace.folder, capture_output=True).returncode == 0

    def fits(self, workspace):
        return self.patch(workspace, "--dry-run")


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
