"""Checks the documents against the source tree. Prints each breach; exit status 1 if there is one.

    python3 tools/check_documents.py SOURCE_FOLDER

- A Markdown file begins with a heading of one `#`, and its other headings are headings.
- Each relative link leads to a file or folder, and to a heading there.
- Documents about the code name files and folders that exist. So do comments in the code. A README names the rooms
  of its folder, and each module has one.
- THIRD_PARTY_NOTICES.md names every generated table with its generator, and every library that CMake finds. Python
  packages for tests are pinned with hashes.
- Every promise in SECURITY.md names tests, and these tests exist.
- CHANGELOG.md begins with the version that CMakeLists.txt says, or with what is not released.
"""
import fnmatch
import os
import pathlib
import posixpath
import re
import sys

OF_THE_SYSTEM = {"PkgConfig", "Threads", "Python3"}  # no library that is shipped
MADE = {".git", ".cache", "__pycache__"}  # not of the tree, and so are these of the root:
MADE_AT_ROOT = re.compile(r"build|build-.*|dist")
CODE_FOLDERS = ("apps", "benchmarks", "cmake", "fuzz", "millrace", "python", "tests", "tools")
# Documents whose paths are paths of the tree. Others, such as guides, name the files of users. There, only a path of a
# file counts that begins with a folder of the code or of documents.
ABOUT_THE_CODE = re.compile(
    rf"(?:{'|'.join(CODE_FOLDERS)})/|docs/(?:adr/|architecture\.md|extending\.md)|CONTRIBUTING\.md")
FROM_THE_ROOT = tuple(f"{folder}/" for folder in (*CODE_FOLDERS, "docs"))
# Comments name sources of other programs, too.
OF_OTHER_PROGRAMS = ("benchmarks/llama3_h100", "caffe2/", "deepspeed/", "include/", "jinja2/", "megatron/", "torch/")
# Names of the tree have no capitals: these stand for what a reader puts in their place. `*` is any text within a name.
NAME = r"[a-z0-9_*][a-z0-9_.*-]*"
FOLDERS = rf"(?:\.\.?/)*(?:{NAME}/)"
CPP = r"\.(?:h|cc|cuh?)"
FILE = re.compile(rf"{FOLDERS}*{NAME}{CPP}|{FOLDERS}+(?:{NAME}\.(?:py|sh|cmake|proto|md)|README\.md|CMakeLists\.txt)")
FOLDER = re.compile(rf"{FOLDERS}+")
INNER_PATH = re.compile(rf"{FOLDERS}+{NAME}")
CPP_FILE_IN_TEXT = re.compile(rf"(?<![\w./*{{}}$-])(?:\.\./)*(?:[a-z0-9_-]+/)*[a-z0-9_]+{CPP}\b(?![\w./*-])")
FILE_IN_COMMENT = re.compile(r"(?<![\w./:~*$}>\"-])(?:(?:[a-z0-9_-]+/)+[a-z0-9_-]+\.(?:h|cc|cuh?|py|md|cmake)"
                             r"|(?:(?:\.\./)+|(?:[a-z0-9_-]+/)+)?README\.md)\b(?![\w/*])")


class Tree:
    """The files and folders below a root, without those that a build makes."""

    def __init__(self, root):
        self.root = root
        self.files = set()
        for folder, folders, files in os.walk(root):
            place = os.path.relpath(folder, root)
            place = "" if place == "." else place + "/"
            folders[:] = [name for name in folders
                          if name not in MADE and (place or not MADE_AT_ROOT.fullmatch(name))]
            self.files.update(place + name for name in files)
        self.folders = {path.rsplit("/", cut)[0] for path in self.files for cut in range(1, path.count("/") + 1)} | {""}
        self.paths = self.files | self.folders
        self.suffixes = {path.split("/", cut)[cut] for path in self.files for cut in range(path.count("/") + 1)}

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8")

    def bases(self, document):
        """The folders that a path in a document may begin at: its own, those above, and the two of all code."""
        folder = posixpath.dirname(document)
        bases = [folder]
        while folder:
            folder = posixpath.dirname(folder)
            bases.append(folder)
        return bases + ["millrace", "apps"]

    def has(self, path, document):
        path = path.rstrip("/")
        for base in self.bases(document):
            full = posixpath.normpath(posixpath.join(base, path))
            if full in self.paths or "*" in full and any(fnmatch.fnmatchcase(name, full) for name in self.files):
                return True
        below = posixpath.dirname(document) + "/" if "/" in document else ""
        return "/" not in path and any(fnmatch.fnmatchcase(name.rpartition("/")[2], path)
                                       for name in self.files if name.startswith(below))

    def begins(self, path, document):
        """Whether the first name of a path is a folder, so that the path can be meant as one of the tree."""
        first = path.split("/")[0]
        return any(posixpath.join(base, first) in self.folders for base in self.bases(document))


def without_blocks(text):
    """A document's lines, empty where they are in a fenced or an indented block."""
    lines, fence, indented = [], "", False
    for line in text.splitlines():
        mark = re.match(r" *(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            lines.append("")
            continue
        indented = line.startswith("    ") and (indented or not lines or not lines[-1].strip())
        lines.append("" if fence or indented and not re.match(r" *(?:[-*]|\d+\.) ", line) else line)
    return lines


def anchors(lines):
    """The anchors of headings, as GitHub makes them."""
    seen = {}
    for line in lines:
        heading = re.match(r"#+ (.*)", line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            seen[anchor] = seen.get(anchor, -1) + 1
            yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        yield from re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line)


def bad_headings(text, lines):
    if not text.startswith("# "):
        yield 1, "does not begin with a heading"
    for number, line in enumerate(lines, 1):
        if re.match(r"#+[^#\s]", line):
            yield number, f"no heading, but looks like one: {line[:40]}"
        elif number > 1 and line.startswith("# "):
            yield number, f"a second title: {line[:40]}"


def bad_links(tree, document, lines, anchors_of):
    for number, line in enumerate(lines, 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "``", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = target.partition("#")
            full = posixpath.normpath(posixpath.join(posixpath.dirname(document), path)) if path else document
            if full not in tree.paths:
                yield number, f"link to {target}, which does not exist"
            elif anchor and anchor not in anchors_of(full):
                yield number, f"link to {target}, where no heading has this name"


def bad_paths(tree, document, text, lines):
    about_the_code = ABOUT_THE_CODE.match(document)
    made = re.findall(r"^`([^`]+)`:$", text, re.MULTILINE)  # files that the document makes, each above its content
    of_a_folder = document.startswith(("apps/", "millrace/"))
    for number, (line, raw) in enumerate(zip(lines, text.splitlines()), 1):
        named = set(CPP_FILE_IN_TEXT.findall(raw)) if of_a_folder else set()  # in pictures, too
        for span in re.findall(r"`([^`]+)`", line):
            if not about_the_code:
                is_path = FILE.fullmatch(span) and span.startswith(FROM_THE_ROOT)
            else:
                inner = INNER_PATH.fullmatch(span) and tree.begins(span, document)
                is_path = inner or FILE.fullmatch(span) or FOLDER.fullmatch(span)
            if is_path:
                named.add(span)
        for path in sorted(named):
            if not tree.has(path, document) and not any(f"/{file}".endswith(f"/{path}") for file in made):
                yield number, f"names {path}, which does not exist"


def bad_rooms(tree, document, lines):
    """A room is a folder of a module that is no target of its own. The README of the folder above names it."""
    folder, _, name = document.rpartition("/")
    if name != "README.md" or not folder.startswith(("apps/millrace", "millrace/")):
        return
    below = {path[len(folder) + 1:] for path in tree.folders if path.rpartition("/")[0] == folder}
    in_table = False
    for number, line in enumerate(lines, 1):
        in_table = line.startswith("|") and (in_table or line.startswith("| room |"))
        row = re.match(r"\| \[?`([a-z0-9_/]+?)/?`", line)
        if in_table and row and f"{folder}/{row[1]}" not in tree.folders:
            yield number, f"lists the room {row[1]}, which does not exist"
    named = {span.split("/")[0] for line in lines for span in re.findall(r"`([^`]+)`", line)}
    for room in sorted(below - named - {"include", "testdata", "testing"}):
        if f"{folder}/{room}/CMakeLists.txt" not in tree.files:
            yield 1, f"does not name the room {room}"


def bad_room_lists(tree, document, lines):
    """Rows of a table of modules with their rooms: | `module` | `room`, `room` (what it is) |."""
    in_table = False
    for number, line in enumerate(lines, 1):
        in_table = line.startswith("|") and (in_table or line.startswith("| module | rooms |"))
        names = re.findall(r"`([a-z0-9_/]+)`", line) if in_table else []
        for room in names[1:]:
            if f"millrace/{names[0]}/{room}" not in tree.folders:
                yield number, f"lists the room {room} of {names[0]}, which does not exist"


def comments(name, text):
    mark, quotes = ("//", '"') if name.endswith((".h", ".cc", ".cu", ".cuh")) else ("#", "\"'")
    for number, line in enumerate(text.splitlines(), 1):
        at = line.find(mark)
        while at > 0 and (line[at - 1] == ":" or any(line.count(quote, 0, at) % 2 for quote in quotes)):  # in a string
            at = line.find(mark, at + len(mark))
        if at >= 0:
            yield number, line[at + len(mark):]


def bad_comments(tree):
    code = re.compile(rf"(?:{'|'.join(CODE_FOLDERS)})/.*(?:{CPP}|\.py|\.cmake|CMakeLists\.txt)")
    for name in sorted(filter(code.fullmatch, tree.files)):
        for number, comment in comments(name, tree.read(name)):
            for path in FILE_IN_COMMENT.findall(comment):
                if path.startswith(("README.md", "../")):  # beside the file, or above
                    known = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) in tree.files
                else:
                    known = path in tree.suffixes or path.startswith(OF_OTHER_PROGRAMS)
                if not known:
                    yield f"{name}:{number}: names {path}, which does not exist"


def bad_documents(tree):
    lines_of, anchors_of = {}, {}

    def lines(name):
        if name not in lines_of:
            lines_of[name] = without_blocks(tree.read(name))
        return lines_of[name]

    def anchors_in(name):
        if name not in anchors_of:
            anchors_of[name] = set(anchors(lines(name))) if name.endswith(".md") else set()
        return anchors_of[name]

    for name in sorted(tree.files):
        module = re.fullmatch(r"(millrace/.+)/CMakeLists\.txt", name)
        if module and f"{module[1]}/README.md" not in tree.files:
            yield f"{module[1]}: a module without a README.md"
        if not name.endswith(".md"):
            continue
        text = tree.read(name)
        breaches = [*bad_headings(text, lines(name)), *bad_links(tree, name, lines(name), anchors_in),
                    *bad_paths(tree, name, text, lines(name)), *bad_rooms(tree, name, lines(name)),
                    *bad_room_lists(tree, name, lines(name))]
        for number, breach in sorted(breaches):
            yield f"{name}:{number}: {breach}"


def cmake_files(root):
    yield root / "CMakeLists.txt"
    for folder in ("apps", "cmake", "millrace", "python", "tests"):
        for name in ("CMakeLists.txt", "*.cmake"):
            yield from (root / folder).rglob(name)


def missing_notices(root, notices):
    for file in sorted(file for file in (root / "millrace").rglob("*") if file.suffix in (".cc", ".txt")):
        with file.open() as text:
            generator = re.match(r"(?:// Generated|# .*made) by (\S+?)\.?\s", text.readline())
        name = file.relative_to(root).as_posix()
        if generator and f"| `{name}` | `{generator[1]}` |" not in notices:
            yield f"no row for {name}, generated by {generator[1]}"
    for file in cmake_files(root):
        for library in re.findall(r"(?:find_package|pkg_check_modules)\((\S+?)[\s)]", file.read_text()):
            if library not in OF_THE_SYSTEM and f"`{library}`" not in notices:
                yield f"no row for the library {library} ({file.relative_to(root)})"
    for wanted in (root / "tests").glob("requirements*.in"):
        locked = wanted.with_suffix(".txt").read_text()
        for package in wanted.read_text().split():
            if not re.search(rf"^{re.escape(package)}[^\n]*\\\n +--hash=sha256:", locked, re.MULTILINE):
                yield f"{package} of {wanted.name} has no hash: run tools/lock-requirements"


def known_tests(root):
    for folder in ("apps", "millrace", "python", "tests"):
        for file in (root / folder).rglob("*_test.cc"):
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text(), re.MULTILINE):
                yield f"{suite}.{name}"
        for file in (root / folder).rglob("test_*.py"):
            for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE):
                yield f"{file.name}::{name}"


def untested_promises(root, promises):
    known = set(known_tests(root))
    for number, line in enumerate(promises.splitlines(), 1):
        if not line.startswith("|") or line.startswith(("|---", "| promise |")):
            continue
        tests = re.findall(r"`([^`]+)`", line.split("|")[2])
        if not tests:
            yield f"line {number} names no test"
        for test in tests:
            if test not in known:
                yield f"line {number}: there is no test {test}"


def wrong_version(root, changelog):
    version = re.search(r"project\(\w+ VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())[1]
    first = re.search(r"^## (.+)$", changelog, re.MULTILINE)
    if first is None or first[1] not in (version, "Unreleased"):
        yield f"does not begin with ## {version}, the version in CMakeLists.txt, or ## Unreleased"


def main(root):
    tree = Tree(root)
    breaches = [*bad_documents(tree), *bad_comments(tree)]
    for name, check in (("THIRD_PARTY_NOTICES.md", missing_notices), ("SECURITY.md", untested_promises),
                        ("CHANGELOG.md", wrong_version)):
        breaches += [f"{name}: {breach}" for breach in check(root, tree.read(name))]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
