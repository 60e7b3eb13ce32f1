"""Judges many mutants with one build."""
import time
from concurrent.futures import ThreadPoolExecutor

from .combine import Combination
from .programs import Programs

# Without a mutant, the simulator does not stop early. Other checks play more histories.
SEEDS_WITHOUT = 2000


def run_together(mutants, workspace, results, jobs):
    """Judges the mutants that can be combined. Returns the ones that are left, and the checks
    among them that have failed on a copy in which no mutant was chosen."""
    combination = combine(mutants, workspace)
    combined = [mutant for mutant in mutants if mutant.name in combination.changes]
    programs = Programs(workspace)
    combined = compile_all(combined, combination, programs)
    print(f"{len(combined)} mutants are combined, {len(mutants) - len(combined)} are not", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        failing = failing_checks(combined, programs, pool)
        sound = [mutant for mutant in combined if mutant.check.text not in failing]
        list(pool.map(lambda mutant: run_one(mutant, combination, programs, results), sound))
    return results.left(mutants), failing


def combine(mutants, workspace):
    """Combines what can be combined."""
    combination = Combination(workspace)
    for number, mutant in enumerate(mutants, 1):
        # The tests of the project read the code itself.
        if "project" not in mutant.check.arguments:
            combination.add(mutant, number)
    return combination


def compile_all(mutants, combination, programs):
    """Builds the copy, and removes mutants until it compiles. Returns the ones in it."""
    while mutants:
        combination.write()
        start = time.time()
        errors = programs.build([mutant.check for mutant in mutants])
        if not errors:
            print(f"built in {time.time() - start:.0f} s", flush=True)
            break
        blamed = combination.remove_blamed(errors)
        print(f"not combined, because they don't compile together: {', '.join(sorted(blamed))}",
              flush=True)
        if not blamed:
            raise RuntimeError(f"no mutant is to blame for the errors at {errors[:5]}")
        mutants = [mutant for mutant in mutants if mutant.name not in blamed]
    return mutants


def failing_checks(mutants, programs, pool):
    """Returns the checks that fail although no mutant is chosen. Such a check would prove
    nothing."""
    checks = list({mutant.check.text: mutant.check for mutant in mutants}.values())
    start = time.time()
    passed = list(pool.map(lambda check: passes_without(check, programs), checks))
    failing = {check.text for check, passes in zip(checks, passed) if not passes}
    print(f"{len(checks)} checks without a mutant: {len(failing)} failed "
          f"({time.time() - start:.0f} s)", flush=True)
    for text in sorted(failing):
        print(f"        {text}", flush=True)
    return failing


def passes_without(check, programs):
    """Returns whether a check passes when no mutant is chosen."""
    arguments = check.program_arguments(seeds=SEEDS_WITHOUT)
    # A busy machine can make a test fail once.
    return any(check.passes(*programs.run(check, arguments=arguments)) for _ in range(2))


def run_one(mutant, combination, programs, results):
    """Judges one mutant. One that is not caught has no verdict yet, because the combination
    itself could hide it."""
    start = time.time()
    number = combination.changes[mutant.name].number
    _, out = programs.run(mutant.check, number, combination.replacements(mutant.name))
    found, said = mutant.check.judge(out)
    if found:
        results.judge(mutant, found, said, time.time() - start)
    else:
        print(f"not caught in the combination, and tried again alone: {mutant.name}: {said}", flush=True)
