"""Holds the includes to the order of the modules: a file of millrace/X may include only headers of X and of the modules
that X names (in its CMakeLists.txt), directly or through others. Prints each breach; exit status 1 if there is one.

    python3 tools/check_layers.py SOURCE_FOLDER
"""
import pathlib
import re
import sys


def declared(root: pathlib.Path) -> dict[str, dict]:
    """module → {folder, own dependencies, sources, tests, their dependencies}, from the millrace_module(...) calls."""
    modules = {}
    for lists in sorted((root / "millrace").rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", lists.read_text())
        for call in re.findall(r"millrace_module\(([^)]*)\)", text):
            name, *words = call.split()
            section, fields = None, {}  # options without values fall away
            for word in words:
                if word in ("SOURCES", "DEPS", "LIBS", "TESTS", "TEST_DEPS"):
                    section = word
                else:
                    fields.setdefault(section, []).append(word)
            modules[name.replace("/", "_")] = {"folder": lists.parent, "deps": fields.get("DEPS", []),
                                               "sources": fields.get("SOURCES", []), "tests": fields.get("TESTS", []),
                                               "test_deps": fields.get("TEST_DEPS", [])}
    return modules


def closure(modules: dict, name: str) -> set[str]:
    seen, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in seen and module in modules:
            seen.add(module)
            todo += modules[module]["deps"]
    return seen


def main(root: pathlib.Path) -> int:
    modules = declared(root)
    breaches = 0
    for name, module in modules.items():
        allowed = {modules[m]["folder"] for m in closure(modules, name)}
        for source in module["sources"]:
            path = module["folder"] / source
            for file in {path, path.with_suffix(".h")}:
                if not file.exists():
                    continue
                for header in re.findall(r'^#include "(millrace/[^"]+)"', file.read_text(), flags=re.M):
                    home = (root / header).parent
                    # Sub-folders that are not modules of their own belong to the module above them.
                    while home not in {m["folder"] for m in modules.values()} and home != root:
                        home = home.parent
                    if home not in allowed:
                        breaches += 1
                        print(f"{file.relative_to(root)}: includes {header}, but module {name} does not depend on "
                              f"{home.relative_to(root)}")
    print(f"{len(modules)} modules, {breaches} breaches of their order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
