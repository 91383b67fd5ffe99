#!/usr/bin/env python3
"""Prints the test programs that a change can reach, one a line, by the order of the modules; "all" if it can reach all.

    reach.py SOURCE_FOLDER COMMIT        (the change: from COMMIT to the working tree)

A test program is reached if the change touches its own folder or the folder of a module that it links, directly or through
others. Tests that run whole programs are reached by any module. Documents reach nothing.
"""
import pathlib
import re
import subprocess
import sys

from check_layers import closure, declared

# The build itself: whatever changes here may change every test.
EVERYTHING = ("cmake/", "CMakeLists.txt", "CMakePresets.json", "tests/support/",
              "tools/build", "tools/run-tests", "tools/sanitize", "tools/with-cleanup")
# The presets of the sanitizers leave out what needs libtorch.
LIBTORCH_ONLY = ("cmake/MillraceTorch.cmake", "cmake/MillraceOneDnn.cmake")
NOTHING = (".md", ".svg", ".png", "LICENSE")


def programs(root, modules):
    """test program → (its folder, modules that it links, whether it runs other programs)."""
    found = {}
    for name, module in modules.items():
        if module["tests"]:
            found[f"{name}_test"] = (module["folder"], {name, *module["test_deps"]}, False)
    for lists in sorted([*(root / "millrace").rglob("CMakeLists.txt"), *(root / "tests").rglob("CMakeLists.txt")]):
        text = re.sub(r"#.*", "", lists.read_text())
        for call in re.findall(r"millrace_test\(([^)]*)\)", text):
            name = call.split()[0]
            linked = set(re.findall(r"millrace::(\w+)", call))
            runs_programs = re.search(rf"add_dependencies\({name}\b|{name}\b[^)]*(mount_program\.cc|millrace_test_program)", text)
            found[name] = (lists.parent, linked, bool(runs_programs))
    return found


def reached(root, modules, changed):
    """The test programs that changes of these files reach; None: all of them."""
    if any(file.startswith(EVERYTHING) and file not in LIBTORCH_ONLY for file in changed):
        return None
    folders = {(root / file).parent for file in changed if not file.endswith(NOTHING)}
    below = lambda folder, top: folder == top or top in folder.parents
    product = any(below(folder, root / top) for folder in folders for top in ("millrace", "apps"))
    names = []
    for name, (own, linked, runs_programs) in programs(root, modules).items():
        homes = {modules[m]["folder"] for link in linked if link in modules for m in closure(modules, link)}
        if (runs_programs and product) or any(below(folder, home) for folder in folders for home in {own, *homes}):
            names.append(name)
    return names


def only_names_folders(diff):
    """Whether the changed lines of the top CMakeLists.txt only say which folders there are, whose files changed, too, or
    include what only libtorch's targets use."""
    lines = [line[1:].strip() for line in diff.splitlines()
             if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))]
    apart = [f"include({pathlib.Path(file).stem})" for file in LIBTORCH_ONLY]
    return all(line.startswith("add_subdirectory(millrace/") or line in apart for line in lines)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()

    def diff(*arguments):
        return subprocess.run(["git", "-C", str(root), "diff", *arguments], capture_output=True, text=True, check=True).stdout

    changed = diff("--name-only", sys.argv[2]).split()
    if only_names_folders(diff("-U0", sys.argv[2], "--", "CMakeLists.txt")):
        changed = [file for file in changed if file != "CMakeLists.txt"]
    names = reached(root, declared(root), changed)
    print("all" if names is None else "\n".join(names))


if __name__ == "__main__":
    main()
