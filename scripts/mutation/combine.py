"""Puts many mutants into one copy of the code. An environment variable chooses one at run time.

A function that a mutant breaks begins with `if crate::mutant_chosen(N) { return { ... }; }`, with the
mutant's body of the function inside. Lua files are contained in the programs as text. Each text is
padded at its end, so that the texts of all mutants have the same length and can replace each other.
"""
import os
import re
from dataclasses import dataclass, field

from .rust import functions_of
from .workspace import Workspace

VARIABLE = "LEASEHOLD_MUTANT"
CHOSEN = f"""
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, dead_code)]
pub fn mutant_chosen(number: u32) -> bool {{
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("{VARIABLE}").ok()?.parse().ok();
    *CHOSEN.get_or_init(|| read().unwrap_or(0)) == number
}}
"""


@dataclass
class Change:
    """The changes of one mutant to the files."""
    number: int
    # For each Rust file, the position of a function among its functions, and the mutant's body.
    bodies: dict = field(default_factory=dict)
    # For each Lua file, the mutant's whole text.
    texts: dict = field(default_factory=dict)


@dataclass
class Span:
    """A range of lines of a combined file that mutants have written or changed."""
    file: str
    first: int
    last: int
    names: tuple
    is_whole_function: bool


class Combination:
    """A copy of the code with many mutants inside."""

    def __init__(self, workspace):
        self.workspace = workspace
        # This copy has the unchanged code. The other copy has mutants inside.
        self.plan = Workspace("plan")
        self.plan.restore()
        self.changes = {}
        self.originals = {}
        self.spans = []
        self.parsed = {}

    def add(self, mutant, number):
        """Adds a mutant. Returns False if it can't be chosen at run time."""
        if not all(self.can_choose(file) for file in mutant.files):
            return False
        broken = mutant.broken(self.plan)
        if broken is None:
            return False
        change = Change(number)
        fits = all(self.compare(file, text, change) for file, text in broken.items())
        if fits:
            self.changes[mutant.name] = change
        return fits

    def can_choose(self, file):
        """Returns whether the file is part of a crate's library or program."""
        if not os.path.isfile(self.plan.path(file)):
            return False
        return file.endswith(".lua") or bool(file.endswith(".rs") and self.roots_of(file))

    def original(self, file):
        if file not in self.originals:
            self.originals[file] = self.plan.read(file)
        return self.originals[file]

    def roots_of(self, file):
        """Returns the roots of the crates that can include this file."""
        source = re.match(r"crates/[^/]+/src/", file)
        if not source:
            return []
        # Macros run when other crates are compiled, and a macro crate can't export a function.
        if source[0].endswith("-macros/src/"):
            return []
        roots = [source[0] + name for name in ("lib.rs", "main.rs")]
        return [root for root in roots if os.path.isfile(self.plan.path(root))]

    def parse(self, file):
        """Returns the skeleton and the functions of the original file."""
        if file not in self.parsed:
            self.parsed[file] = functions_of(self.original(file))
        return self.parsed[file]

    def compare(self, file, mutated, change):
        """Records a mutant's changes to a file. Returns whether it changes only bodies or Lua."""
        if file.endswith(".lua"):
            change.texts[file] = mutated
            return True
        skeleton, functions = self.parse(file)
        other_skeleton, others = functions_of(mutated)
        if skeleton != other_skeleton:
            return False
        original = self.original(file)
        bodies = change.bodies[file] = {}
        for place, (function, other) in enumerate(zip(functions, others)):
            body = mutated[other.start:other.end]
            if body != original[function.start:function.end]:
                if function.is_const:
                    return False
                bodies[place] = body
        return True

    def write(self):
        """Writes all files that the mutants change, and returns their names."""
        self.spans = []
        rust = sorted({file for change in self.changes.values() for file in change.bodies})
        lua = sorted({file for change in self.changes.values() for file in change.texts})
        roots = sorted({root for file in rust for root in self.roots_of(file)})
        for file in sorted({*rust, *roots}):
            text = self.combined(file) if file in rust else self.original(file)
            self.workspace.write(file, text + (CHOSEN if file in roots else ""))
        for file in lua:
            self.workspace.write(file, self.filled(file, self.original(file)))
        written = {*rust, *roots, *lua}
        # Files that only removed mutants had changed get their original text.
        self.workspace.restore(except_for=written)

    def combined(self, file):
        """Returns the text of a Rust file in which each mutant's bodies can be chosen."""
        original, parts, at, line = self.original(file), [], 0, 1
        for place, function in enumerate(self.parse(file)[1]):
            choices = [(name, change.number, change.bodies[file][place])
                       for name, change in self.changes.items()
                       if place in change.bodies.get(file, {})]
            if not choices:
                continue
            parts.append(original[at:function.start] + "{\n")
            line += parts[-1].count("\n")
            first = line
            for name, number, body in choices:
                text = f"if crate::mutant_chosen({number}) {{ return {body}; }}\n"
                self.spans.append(Span(file, line, line + text.count("\n") - 1, (name,), False))
                parts.append(text)
                line += text.count("\n")
            parts.append(original[function.start + 1:function.end])
            line += parts[-1].count("\n")
            names = tuple(name for name, _, _ in choices)
            self.spans.append(Span(file, first, line, names, True))
            at = function.end
        return "".join(parts) + original[at:]

    def filled(self, file, text):
        """Returns the text of a Lua file, padded to the length of the longest text."""
        texts = [change.texts[file] for change in self.changes.values() if file in change.texts]
        longest = max(len(other.encode()) for other in [*texts, self.original(file)])
        return text + "\n" * (longest + 1 - len(text.encode()))

    def replacements(self, name):
        """Returns the bytes to replace in the programs for this mutant, and their replacements."""
        return [(self.filled(file, self.original(file)).encode(), self.filled(file, text).encode())
                for file, text in self.changes[name].texts.items()]

    def remove_blamed(self, errors):
        """Removes the mutants to which these compiler errors point, and returns their names. Each
        error has a list of places, the primary places first."""
        blamed = {name for places in errors for name in self.blamed(places)}
        if not blamed:
            files = {file for places in errors for file, _, _ in places}
            blamed = {name for name, change in self.changes.items() if files & {*change.bodies}}
        for name in blamed:
            del self.changes[name]
        return blamed

    def blamed(self, places):
        """Returns the mutants whose block the error names first, or whose functions it names."""
        for whole in (False, True):
            for file, first, last in places:
                names = {name for span in self.spans
                         if span.file == file and span.is_whole_function == whole
                         and span.first <= last and first <= span.last for name in span.names}
                if names:
                    return names
        return set()
