"""Checks the structure of millrace/ and apps/. Prints each breach; exit status 1 if there is one.

    python3 tools/check_layers.py SOURCE_FOLDER

1. A file includes headers only of its own module and of the modules that its target names in DEPS, not of those that only
   its dependencies name. Headers count as well as .cc files; tests may use TEST_DEPS too.
2. Folders do not include each other in cycles. Tests are left out.
3. A header that a target names in PUBLIC is installed for programs of others. It includes such headers and those of the
   standard library, nothing else.
"""
import collections
import pathlib
import re
import subprocess
import sys

OUTSIDE = re.compile(r"^#include <([^>]+)>", flags=re.M)
INCLUDE = re.compile(r'^#include "((?:millrace|apps)/[^"]+)"', flags=re.M)


def without_comments(file: pathlib.Path) -> str:
    return re.sub(r"#.*", "", file.read_text())


def fields_of(call: str, sections: tuple[str, ...]) -> tuple[str, dict[str, list[str]]]:
    """The name and the lists of one call: "x SOURCES a b DEPS c" → ("x", {"SOURCES": ["a", "b"], "DEPS": ["c"]})."""
    name, *words = call.split()
    section, fields = None, {}  # options without values fall away
    for word in words:
        if word in sections:
            section = word
        else:
            fields.setdefault(section, []).append(word)
    return name, fields


def declared(root: pathlib.Path) -> dict[str, dict]:
    """module → {folder, own dependencies, sources, tests, their dependencies}, from the millrace_module(...) calls."""
    modules = {}
    for lists in sorted((root / "millrace").rglob("CMakeLists.txt")):
        for call in re.findall(r"millrace_module\(([^)]*)\)", without_comments(lists)):
            name, fields = fields_of(call, ("PUBLIC", "SOURCES", "DEPS", "LIBS", "TESTS", "TEST_DEPS"))
            modules[name.replace("/", "_")] = {"folder": lists.parent, "deps": fields.get("DEPS", []),
                                               "sources": fields.get("SOURCES", []), "tests": fields.get("TESTS", []),
                                               "test_deps": fields.get("TEST_DEPS", []),
                                               "public": fields.get("PUBLIC", [])}
    return modules


def closure(modules: dict, name: str) -> set[str]:
    """A module and all that it depends on, directly or through others."""
    seen, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in seen and module in modules:
            seen.add(module)
            todo += modules[module]["deps"]
    return seen


def programs(root: pathlib.Path) -> dict[str, dict]:
    """The programs of apps/ and the library that they share, in the form of `declared`."""
    targets = {}
    for lists in sorted((root / "apps").rglob("CMakeLists.txt")):
        text = without_comments(lists)
        linked = " ".join(re.findall(r"target_link_libraries\(([^)]*)\)", text))
        for kind, call in re.findall(r"(millrace_program|add_library)\(([^)]*)\)", text):
            name, fields = fields_of(call, ("SOURCES", "DEPS", "LIBS", "PRECOMPILED", "STATIC"))
            if "ALIAS" in call.split():
                continue
            deps = fields.get("DEPS", []) + re.findall(r"millrace::(\w+)", linked)
            targets[name.removeprefix("millrace_")] = {"folder": lists.parent, "deps": deps, "tests": [], "test_deps": [],
                                                       "sources": fields.get("SOURCES", []) + fields.get("STATIC", [])}
    return targets


def add_tests(root: pathlib.Path, targets: dict) -> None:
    """Adds the tests of millrace_test(...) calls in millrace/ to the module of their folder."""
    folders = {target["folder"]: target for target in reversed(targets.values())}
    for lists in sorted((root / "millrace").rglob("CMakeLists.txt")):
        for call in re.findall(r"millrace_test\(([^)]*)\)", without_comments(lists)):
            _, fields = fields_of(call, ("SOURCES", "LIBS", "PRECOMPILED", "TIMEOUT", "LABEL"))
            if lists.parent in folders:
                folders[lists.parent]["tests"] += fields.get("SOURCES", [])
                folders[lists.parent]["test_deps"] += re.findall(r"millrace::(\w+)", " ".join(fields.get("LIBS", [])))


def tracked(root: pathlib.Path) -> list[str]:
    listed = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True)
    if listed.returncode == 0:
        return [file for file in listed.stdout.split("\n") if file and (root / file).exists()]
    return [path.relative_to(root).as_posix() for top in ("millrace", "apps", "tests", "benchmarks", "tools")
            for path in (root / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts]


class Tree:
    """Which target a file belongs to, what it includes, and whether only tests use it."""

    def __init__(self, root: pathlib.Path, files: list[str]):
        self.targets = declared(root) | programs(root)
        add_tests(root, self.targets)
        self.files = [file for file in files if file.startswith(("millrace/", "apps/")) and file.endswith((".cc", ".h"))]
        self.includes = {file: INCLUDE.findall((root / file).read_text()) for file in self.files}
        self.stems, self.test_stems, self.folders = {}, set(), collections.defaultdict(set)
        for name, target in self.targets.items():
            folder = target["folder"].relative_to(root)
            for source in target["sources"] + target["tests"]:
                path = folder / source
                self.stems[path.with_suffix("").as_posix()] = name
                if source in target["tests"]:
                    self.test_stems.add(path.with_suffix("").as_posix())
                else:
                    self.folders[path.parent.as_posix()].add(name)
            self.folders[folder.as_posix()].add(name)
        self.products = self._products()

    def target_of(self, file: str) -> str | None:
        """The target that compiles the file; of a header without a .cc, the one target of its folder or of those above."""
        if (stem := file.rsplit(".", 1)[0]) in self.stems:
            return self.stems[stem]
        for folder in pathlib.PurePosixPath(file).parents:
            names = self.folders.get(folder.as_posix(), set())
            if len(names) > 1:  # several targets in a folder: the one that is named after it
                names = {max(names & {folder.as_posix().removeprefix("millrace/").replace("/", "_"), folder.name}, default=None)}
            if names and None not in names:
                return next(iter(names))
        return None

    def _products(self) -> set[str]:
        """All files but tests and headers that nothing but tests includes."""
        owned = {file for file in self.files
                 if file.rsplit(".", 1)[0] in self.stems and file.rsplit(".", 1)[0] not in self.test_stems}
        todo, found = list(owned), set(owned)
        while todo:
            for header in self.includes.get(todo.pop(), []):
                if header not in found and header.rsplit(".", 1)[0] not in self.test_stems:
                    found.add(header)
                    todo.append(header)
        return found


def wrong_includes(tree: Tree):
    for file in tree.files:
        name = tree.target_of(file)
        if name is None:
            yield f"{file}: belongs to no target"
            continue
        target = tree.targets[name]
        allowed = {name, *target["deps"]}
        if file not in tree.products:
            allowed |= set(target["test_deps"])
        for header in tree.includes[file]:
            home = tree.target_of(header)
            if home not in allowed:
                yield f"{file}: includes {header}, but {name} does not name {home} in its DEPS"


def components(edges: dict) -> list[set]:
    """The strongly connected components of more than one folder (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(folder):
        index[folder] = low[folder] = len(index)
        stack.append(folder)
        for other in edges.get(folder, ()):
            if other not in index:
                visit(other)
                low[folder] = min(low[folder], low[other])
            elif other in stack:
                low[folder] = min(low[folder], index[other])
        if low[folder] == index[folder]:
            at = stack.index(folder)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for folder in list(edges):
        if folder not in index:
            visit(folder)
    return found


def cycles(tree: Tree):
    edges = collections.defaultdict(dict)  # folder → folder → one include
    for file in sorted(tree.products & set(tree.files)):
        for header in tree.includes[file]:
            here, there = (pathlib.PurePosixPath(path).parent.as_posix() for path in (file, header))
            if here != there:
                edges[here].setdefault(there, f"{file} includes {header}")
    for component in components(edges):
        yield f"folders in a cycle: {' '.join(sorted(component))}"
        for here in sorted(component):
            for there in sorted(component & edges[here].keys()):
                yield f"    {edges[here][there]}"


def wrong_public_headers(root: pathlib.Path, tree: Tree):
    public = {(target["folder"] / header).relative_to(root).as_posix()
              for target in tree.targets.values() for header in target.get("public", [])}
    for header in sorted(public):
        if not (root / header).exists():
            yield f"{header}: is named as a public header and does not exist"
            continue
        for other in tree.includes.get(header, []):
            if other not in public:
                yield f"{header}: is installed, but includes {other}, which is not"
        for other in OUTSIDE.findall((root / header).read_text()):
            if not re.fullmatch(r"[a-z_0-9]+", other):  # as <vector> and <cstdint>
                yield f"{header}: is installed, but includes <{other}>, which is not of the standard library"


def main(root: pathlib.Path) -> int:
    files = tracked(root)
    tree = Tree(root, files)
    breaches = [*wrong_includes(tree), *cycles(tree), *wrong_public_headers(root, tree)]
    print(*breaches, sep="\n", end="\n" if breaches else "")
    print(f"{len(tree.targets)} targets, {len(breaches)} breaches of their order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
