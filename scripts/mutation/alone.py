"""Breaks the copy with one mutant at a time, and builds it for each."""
import os
import time

from .results import STALE, UNSURE
from .workspace import last_error, limited


def run_alone(mutants, workspace, results, doubted=()):
    """Checks mutants one after the other. The checks in `doubted` must first pass without a mutant."""
    workspace.restore()
    failing = {text for text in sorted(doubted) if fails_without(text, mutants, workspace)}
    for mutant in mutants:
        if mutant.check.text in failing:
            results.say(mutant, UNSURE, f"its check fails without it: {mutant.check.text}")
            continue
        start = time.time()
        before = mutant.apply(workspace)
        if before is None:
            results.say(mutant, STALE, "the code has changed")
            continue
        found, said = run_check(mutant.check, workspace)
        results.judge(mutant, found, said, time.time() - start)
        for file, text in before.items():
            workspace.write(file, text)


def fails_without(text, mutants, workspace):
    """Returns whether a check fails on the code without a mutant."""
    check = next(mutant.check for mutant in mutants if mutant.check.text == text)
    status, out = output_of(check, workspace)
    return not check.passes(status, out)


def run_check(check, workspace):
    """Returns the check that caught the mutant in the copy, or None, and a line of its output."""
    status, out = output_of(check, workspace)
    if status == "no build":
        return None, "it does not compile: " + last_error(out)
    return check.judge(out)


def output_of(check, workspace):
    """Builds and runs a check, and returns its status and output."""
    if check.is_simulator:
        built, out = workspace.build("build", "--release", "-q", "-p", "leasehold-sim")
    else:
        built, out = workspace.build("test", "-q", *check.cargo_arguments(), "--no-run")
    if built != 0:
        return "no build", out
    if check.is_simulator:
        binary = os.path.join(workspace.target, "release", "leasehold-sim")
        return limited([binary, *check.program_arguments()], cwd=workspace.folder)
    return workspace.cargo("test", *check.arguments)
