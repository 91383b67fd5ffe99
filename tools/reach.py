#!/usr/bin/env python3
"""Prints the test programs that a change can reach, one a line, by what files include; "all" if it can reach all.

    reach.py SOURCE_FOLDER COMMIT             (the change: from COMMIT to the working tree)
    reach.py SOURCE_FOLDER COMMIT --near      (only programs of the targets whose own files changed)
    reach.py SOURCE_FOLDER COMMIT --files     (prints the product's files that the change can reach, instead)

A file reaches what includes it, directly or through others. The .cc file of a header counts as a part of the header. A .cc
file without a header of its name, and any other file of a folder (tables, test data), counts as a part of all headers and
tests of the folder. A changed CMakeLists.txt reaches the tests that it declares. Tests that run whole programs are reached
by any change of the product or, if their folder is one of COMMANDS, of what the commands there are made of. Documents reach
nothing.
"""
import collections
import pathlib
import re
import subprocess
import sys

from check_layers import INCLUDE, declared, fields_of, without_comments

# The build itself: whatever changes here may change every test.
EVERYTHING = ("cmake/", "CMakeLists.txt", "CMakePresets.json", "tests/support/",
              "tools/build", "tools/run-tests", "tools/with-cleanup")
# The presets of the sanitizers leave out what needs libtorch.
LIBTORCH_ONLY = ("cmake/MillraceTorch.cmake", "cmake/MillraceOneDnn.cmake")
NOTHING = (".md", ".svg", ".png", "LICENSE")
PRODUCT = ("millrace/", "apps/")
# Tests that run these commands of `millrace` alone.
COMMANDS = {"tests/mount/": ("apps/millrace/main.cc", "apps/millrace/mount/", "apps/common/")}


def programs(root):
    """test program → (the CMakeLists.txt that declares it, its sources, whether it runs other programs)."""
    found = {}
    for name, module in declared(root).items():
        if module["tests"]:
            found[f"{name}_test"] = (module["folder"] / "CMakeLists.txt", module["tests"], False)
    for lists in sorted([*(root / "millrace").rglob("CMakeLists.txt"), *(root / "tests").rglob("CMakeLists.txt")]):
        text = without_comments(lists)
        for call in re.findall(r"millrace_test\(([^)]*)\)", text):
            name, fields = fields_of(call, ("SOURCES", "LIBS", "PRECOMPILED", "TIMEOUT", "LABEL"))
            runs_programs = re.search(rf"add_dependencies\({name}\b|{name}\b[^)]*(mount_program\.cc|millrace_test_program)", text)
            found[name] = (lists, fields.get("SOURCES", []), bool(runs_programs))
    paths = lambda lists, sources: [(lists.parent / source.replace("${PROJECT_SOURCE_DIR}", str(root))).relative_to(root).as_posix()
                                    for source in sources]
    return {name: (lists.relative_to(root).as_posix(), paths(lists, sources), runs)
            for name, (lists, sources, runs) in found.items()}


class Graph:
    """What files are made of: the files that they include, and what belongs to these."""

    def __init__(self, root):
        files = [path.relative_to(root).as_posix() for top in ("millrace", "apps", "tests", "python")
                 for path in (root / top).rglob("*") if path.suffix in (".cc", ".h")]
        self.parts = {file: set(re.findall(r'^#include "((?:millrace|apps|tests)/[^"]+)"', (root / file).read_text(), flags=re.M))
                      for file in files}
        self.apart = collections.defaultdict(set)  # folder → what belongs to all of its files
        for file in files:
            stem = file.removesuffix(".cc")
            if file.endswith(".cc") and f"{stem}.h" in self.parts:
                self.parts[f"{stem}.h"].add(file)
            elif file.endswith(".cc") and not file.endswith("_test.cc"):
                self.apart[pathlib.PurePosixPath(file).parent.as_posix()].add(file)

    def made_of(self, files, changed):
        """All files that these are made of. Of `changed`, other files than sources belong to all files of their folder."""
        apart = {folder: set(parts) for folder, parts in self.apart.items()}
        for file in changed:
            if not file.endswith((".cc", ".h", "CMakeLists.txt")):
                apart.setdefault(pathlib.PurePosixPath(file).parent.as_posix(), set()).add(file)
        seen, todo = set(), list(files)
        while todo:
            file = todo.pop()
            if file in seen:
                continue
            seen.add(file)
            folder = pathlib.PurePosixPath(file).parent.as_posix()
            todo += self.parts.get(file, set())
            if file.endswith((".h", "_test.cc")):
                todo += apart.get(folder, set()) | apart.get(f"{folder}/testdata", set())
        return seen


def home_of(root, file):
    """The CMakeLists.txt that a file belongs to."""
    folder = (root / file).parent
    while not (folder / "CMakeLists.txt").exists() and folder != root:
        folder = folder.parent
    return (folder / "CMakeLists.txt").relative_to(root).as_posix()


def reached(root, changed, near=False):
    """The test programs that changes of these files reach; None: all of them."""
    if any(file.startswith(EVERYTHING) and file not in LIBTORCH_ONLY for file in changed):
        return None
    changed = {file for file in changed if not file.endswith(NOTHING)}
    product = {file for file in changed if file.startswith(PRODUCT)}
    graph = Graph(root)
    if near:
        homes = {file: home_of(root, file) for file in changed}
        return [name for name, (lists, sources, _) in programs(root).items()
                if {file for file in changed if homes[file] == lists} & graph.made_of(sources, changed)]
    names = []
    for name, (lists, sources, runs_programs) in programs(root).items():
        commands = next((COMMANDS[folder] for folder in COMMANDS if lists.startswith(folder)), PRODUCT)
        run = graph.made_of([file for file in graph.parts if file.startswith(commands)], changed) if runs_programs else set()
        if lists in changed or changed & graph.made_of(sources, changed) or product & run:
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
    if "--files" in sys.argv:
        # Of a reached file, the .cc of a header is reported with it: both are checked in one translation unit.
        graph = Graph(root)
        files = [file for file in graph.parts if file.startswith(PRODUCT) and file.endswith(".cc")]
        headers = lambda file: graph.made_of([file], ()) if file in changed else includes(graph, file)
        print("\n".join(file for file in files if headers(file) & set(changed)))
        return
    if only_names_folders(diff("-U0", sys.argv[2], "--", "CMakeLists.txt")):
        changed = [file for file in changed if file != "CMakeLists.txt"]
    names = reached(root, changed, "--near" in sys.argv)
    print("all" if names is None else "\n".join(names))


def includes(graph, file):
    """A file and the headers that it includes, directly or through others."""
    seen, todo = set(), [file]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += [part for part in graph.parts.get(one, ()) if part.endswith(".h")]
    return seen


if __name__ == "__main__":
    main()
