#!/usr/bin/env python3
"""Runs clang-tidy over translation units, all findings as errors, and remembers which were clean.

    tools/tidy.py BUILD_FOLDER UNIT...

A unit that was clean is skipped as long as nothing changes that clang-tidy sees: the texts of the unit and of all files
it includes, the compiler's command, .clang-tidy and clang-tidy itself. The names of clean ones are kept in
$XDG_CACHE_HOME/millrace/tidy (or ~/.cache), of all work trees together; each is a hash, and one unused for 30 days goes.
"""
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

TIDY = "clang-tidy-19"
NOISE = ("Suppressed ", "Use -", "[1/1] Processing file")
KEPT_FOR = 30 * 86400  # seconds


@cache
def file_hash(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def without_precompiled(command, unit):
    """The compiler's command without its input and output, and the headers that it precompiled for the unit."""
    words = iter(shlex.split(command))
    kept, headers = [], []
    for word in words:
        if word == "-o":
            next(words)
        elif word == "-Xclang":
            option = next(words)
            assert option in ("-include-pch", "-include"), option
            assert next(words) == "-Xclang"
            file = next(words)
            headers += [file] if option == "-include" else []
        elif word not in ("-c", unit):
            kept.append(word)
    return tuple(kept), headers


@cache
def files_of(command, folder, source):
    """All files that the compiler reads for the source; None if it lacks one."""
    rule = subprocess.run([*command, "-M", source], cwd=folder, capture_output=True, text=True)
    if rule.returncode != 0:
        return None
    return {folder / file for file in shlex.split(rule.stdout.replace("\\\n", " ").split(":", 1)[1])}


def fingerprint(command, unit, folder, root, version):
    """A name for all that clang-tidy sees of the unit, the same in any work tree; None if it lacks a header."""
    flags, headers = without_precompiled(command, unit)
    read = [files_of(flags, folder, source) for source in (unit, *headers)]
    if None in read:
        return None
    files = set().union(*read) - {Path(unit)}
    lines = [version, file_hash(root / ".clang-tidy"), command, Path(unit).read_text(),
             *(f"{file_hash(file)} {file}" for file in files)]
    # A joined unit names its sources by their absolute paths, and so do the command and the list of what it reads.
    return hashlib.sha256("\n".join(sorted(line.replace(str(root), "") for line in lines)).encode()).hexdigest()


def main():
    folder, units = Path(sys.argv[1]).resolve(), sys.argv[2:]
    root = Path(__file__).resolve().parent.parent
    clean = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace" / "tidy"
    clean.mkdir(parents=True, exist_ok=True)
    for old in clean.iterdir():
        if old.stat().st_mtime < time.time() - KEPT_FOR:
            old.unlink(missing_ok=True)
    commands = {u["file"]: u["command"] for u in json.loads((folder / "compile_commands.json").read_text())}
    version = subprocess.run([TIDY, "--version"], check=True, capture_output=True, text=True).stdout

    def check(unit):
        """Whether the unit is clean, and whether that was known."""
        name = fingerprint(commands[unit], unit, folder, root, version)
        mark = clean / name if name else None
        if mark and mark.exists():
            mark.touch()
            return True, True
        run = subprocess.run([TIDY, "-p", folder, "--quiet", "--warnings-as-errors=*", unit], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        said = [line for line in run.stdout.splitlines()
                if not line.startswith(NOISE) and not line.rstrip(".").endswith(("warnings generated", "warning generated"))]
        if said:
            print("\n".join(said), flush=True)
        if run.returncode == 0 and mark:
            mark.touch()
        return run.returncode == 0, False

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        results = list(workers.map(check, units))
    known = sum(1 for ok, was_known in results if ok and was_known)
    print(f"clang-tidy: {len(units)} units, {known} of them known to be clean")
    sys.exit(0 if all(ok for ok, _ in results) else 1)


if __name__ == "__main__":
    main()
