"""Checks that the mutants can still be applied to the code, without running anything."""
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time

from .workspace import BUILD_LIMIT_S, last_error


def stale_or_broken(mutants, workspace):
    """Returns the mutants that are outdated or don't compile. Compiles many mutants at a time."""
    stale = stale_of(mutants, workspace)
    left = [mutant for mutant in mutants if mutant not in stale]
    broken = []
    with lua_server() as compile_lua:
        while left:
            group = [mutant for mutant in left
                     if mutant.apply(workspace) is not None]
            workspace.restore()
            broken += do_not_compile(group, workspace, compile_lua)
            left = [mutant for mutant in left if mutant not in group]
    return stale + broken


def stale_of(mutants, workspace):
    """Returns the mutants that can't be applied, or whose tests do not exist."""
    workspace.restore()
    sources = words_of_sources(workspace)
    return [mutant for mutant in mutants if is_stale(mutant, workspace, sources)]


def is_stale(mutant, workspace, sources):
    """Returns whether the mutant can't be applied or its test does not exist, and prints which."""
    if not mutant.fits(workspace):
        print(f"STALE   {mutant.name}: the code has changed", flush=True)
    elif not mutant.check.exists(sources):
        print(f"STALE   {mutant.name}: there is no such test: {mutant.check.text}", flush=True)
    else:
        return False
    return True


def words_of_sources(workspace):
    """Returns the words in each Rust source, which include the names of tests that macros generate."""
    words = {}
    for folder, _, files in os.walk(workspace.path("crates")):
        for file in files:
            if file.endswith(".rs"):
                path = os.path.join(folder, file)
                with open(path) as source:
                    words[path] = set(re.findall(r"\w+", source.read()))
    return words


def do_not_compile(group, workspace, compile_lua):
    """Returns the mutants in the group that don't compile. Halves the group to find them."""
    for mutant in group:
        mutant.apply(workspace)
    error = first_error(group, workspace, compile_lua)
    workspace.restore()
    if error is None:
        return []
    if len(group) > 1:
        # The mutants may fail only in combination, so each half is compiled separately.
        half = len(group) // 2
        return (do_not_compile(group[:half], workspace, compile_lua)
                + do_not_compile(group[half:], workspace, compile_lua))
    print(f"BROKEN  {group[0].name}: it does not compile: {error}", flush=True)
    return group


def first_error(group, workspace, compile_lua):
    """Returns the first error from Redis or the compiler about the current copy, or None."""
    files = {file for mutant in group for file in mutant.files}
    for file in sorted(file for file in files if file.endswith(".lua")):
        error = compile_lua(workspace.path(file))
        if error:
            return f"{file}: {error}"
    if any(file.endswith(".rs") for file in files):
        # The tests inside the crates are compiled together with the crates. With the features of the
        # whole workspace, the dependencies are compiled only once.
        status, out = workspace.cargo(
            "check", "-q", "--workspace", "--all-features", "--profile", "test", "--lib", "--bins",
            limit_s=BUILD_LIMIT_S)
        if status != 0:
            return last_error(out)
    return None


@contextlib.contextmanager
def lua_server():
    """Yields a function that compiles Lua on a server, without running it."""
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "socket")
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL, start_new_session=True)

        def cli(*arguments):
            return subprocess.run(["redis-cli", "-s", socket, *arguments],
                                  capture_output=True, text=True).stdout.strip()

        try:
            deadline = time.time() + 30
            while cli("ping") != "PONG":
                if time.time() > deadline:
                    sys.exit("redis-server does not answer: is it installed?")
                time.sleep(0.02)

            def compile_lua(path):
                with open(path) as file:
                    # The library completes call.lua.
                    text = file.read().replace("--[[STEPS]]", "if false then")
                # Each section is a script, or a part of one.
                for section in text.split("\n-- ["):
                    said = cli("script", "load", "-- [" + section)
                    if not re.fullmatch("[0-9a-f]{40}", said):
                        return said
                return None

            yield compile_lua
        finally:
            server.terminate()
            server.wait()
