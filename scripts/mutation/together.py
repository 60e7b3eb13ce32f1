"""Checks many mutants with one build."""
import time
from concurrent.futures import ThreadPoolExecutor

from .combine import Combination
from .programs import Programs

# Without a mutant, the simulator does not stop early. Other checks play more histories.
SEEDS_WITHOUT = 2000


def run_together(mutants, workspace, results, jobs):
    """Checks the mutants that can be combined. Returns the mutants that have no verdict yet, and the
    checks that have failed on a copy in which no mutant was chosen."""
    # The copy also contains mutants that already have a verdict, so that a resumed run need not
    # build it again.
    combination = combine(mutants, workspace)
    combined = [mutant for mutant in mutants if mutant.name in combination.changes]
    programs = Programs(workspace)
    combined = compile_all(combined, combination, programs)
    print(f"{len(combined)} mutants are combined, {len(mutants) - len(combined)} are not", flush=True)
    combined = results.left(combined)
    busy, quiet, failing = sort_checks(combined, programs, jobs)

    def run_those_of(checks, jobs):
        """Checks the mutants that these checks must catch."""
        chosen = [mutant for mutant in combined if mutant.check.text in checks]
        in_parallel(jobs, chosen, lambda mutant: run_one(mutant, combination, programs, results))

    run_those_of(busy, jobs)
    run_those_of(quiet, 1)
    return results.left(mutants), failing


def in_parallel(jobs, items, work):
    """Returns the result of `work` for each item. Works on `jobs` items at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, items))


def combine(mutants, workspace):
    """Combines all mutants that can be combined."""
    combination = Combination(workspace)
    for number, mutant in enumerate(mutants, 1):
        # The tests in `project` read the sources, so they would see all mutants at once.
        if "project" not in mutant.check.arguments:
            combination.add(mutant, number)
    return combination


def compile_all(mutants, combination, programs):
    """Builds the copy, and removes mutants until it compiles. Returns the remaining mutants."""
    start = time.time()
    while mutants:
        combination.write()
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


def sort_checks(mutants, programs, jobs):
    """Runs each check without a mutant, because a check that fails even then proves nothing. Returns
    the checks that pass while others run, the checks that pass only alone, and the failed ones."""
    checks = {mutant.check.text: mutant.check for mutant in mutants}
    start = time.time()
    busy = passing(checks, programs, jobs)
    quiet = passing({text: checks[text] for text in checks.keys() - busy}, programs, 1)
    failing = checks.keys() - busy - quiet
    print(f"{len(checks)} checks without a mutant: {len(quiet)} pass only alone, {len(failing)} fail"
          f" ({time.time() - start:.0f} s)", flush=True)
    for text in sorted(quiet | failing):
        print(f"        {'alone' if text in quiet else 'fails'}: {text}", flush=True)
    return busy, quiet, failing


def passing(checks, programs, jobs):
    """Returns the checks that pass when no mutant is chosen. Runs `jobs` checks at a time."""
    def passes(text):
        arguments = checks[text].program_arguments(seeds=SEEDS_WITHOUT)
        return checks[text].passes(*programs.run(checks[text], arguments=arguments))

    texts = list(checks)
    return {text for text, passed in zip(texts, in_parallel(jobs, texts, passes)) if passed}


def run_one(mutant, combination, programs, results):
    """Checks one mutant. If it is not caught, it has no verdict yet, because the other mutants in
    the copy could hide it."""
    start = time.time()
    number = combination.changes[mutant.name].number
    _, out = programs.run(mutant.check, number, combination.replacements(mutant.name))
    found, said = mutant.check.judge(out)
    if found:
        results.judge(mutant, found, said, time.time() - start)
    else:
        print(f"not caught in the combination, and tried again alone: {mutant.name}: {said}", flush=True)
