"""Checks the wording of headers, comments and documents. Prints each breach of a rule; exit status 1 if there is one.

    python3 tools/check_style.py SOURCE_FOLDER

The rules:

headline  The first comment of a header says what the header has: "A write-ahead log of …", "Reads …". It does not begin
          with a clause or a pronoun: "What …", "How …", "When …", "Whether …", "Those that …".
summary   The documentation of a type or function in a header begins in the same way.
phrase    Comments and documents do not use the phrases in PHRASES, because their noun is elsewhere: "so many", "likewise".
type      A type of a namespace has a name that is unique and says something: NodeKind, not Kind.
speech    A public function does not tell, hear or say: data is sent, received, recorded or emitted.
object    A public function names the object of its verb, in its name or by a parameter: TakePage() or Take(page), not
          Take().
"""
import bisect
import pathlib
import re
import sys
from collections.abc import Iterator

from check_layers import tracked

RULES = ("headline", "summary", "phrase", "type", "speech", "object")

CLAUSE_HEADS = {"how", "what", "when", "where", "whether", "which", "who", "whom", "whose", "why", "while", "if"}
PRONOUNS = {"it", "its", "that", "these", "this", "those", "they", "such", "none", "nothing", "they", "ones"}
PREPOSITIONS = {"at", "behind", "beside", "between", "by", "for", "from", "in", "of", "on", "to", "with"}
NO_HEADLINES = CLAUSE_HEADS | PRONOUNS | PREPOSITIONS
PHRASES = ("so many", "so much", "likewise", "none of it", "that is none", "that are none", "those that are none",
           "such that are", "no one's", "which see", "what is none")
TYPES = {"Kind", "Entry", "Part", "Place", "Piece", "Told", "Hand"}
SPEECH = {"Tell", "Hear", "Say", "Note", "Judge", "Obey", "Shake", "Told"}
WITHOUT_OBJECT = {"Add", "Run", "Take", "Fill", "Mark", "Keep", "Hold", "Give"}

WORDS = re.compile(r"[\w'-]+")
# Strings and raw strings are matched too, so that what looks like a comment in them is none.
COMMENT = re.compile(r"""R"(?P<end>[^\s()\\]*)\(.*?\)(?P=end)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+'
                         | (?P<comment>//[^\n]*)""", flags=re.S | re.X)
PYTHON_COMMENT = re.compile(r'''(?P<comment>\#[^\n]* | """.*?""") | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ''',
                            flags=re.S | re.X)
CODE_SPAN = re.compile(r"^```.*?^```|^    [^\n]*|`[^`\n]*`", flags=re.M | re.S)
PHRASE = re.compile(r"\b(?:" + "|".join(phrase.replace(" ", r"\s+(?:(?://[/!]?<?|\#)\s*)?") for phrase in PHRASES) + r")\b",
                    flags=re.I)
DOCUMENTED = re.compile(r"^((?:[ \t]*///(?!<)[^\n]*\n)+)[ \t]*([^/\s][^\n]*)", flags=re.M)
DECLARES_TYPE = re.compile(r"(?:template\s*<.*>\s*)?(?:class|struct|enum|using)\b")
TYPE = re.compile(r"(?:class|struct|enum(?:\s+class)?)\s+(?:\[\[\w+\]\]\s*|MR_\w+(?:\([^)]*\))?\s+|alignas\([^)]*\)\s*)?(\w+)"
                  r"(?![\w\s]*;)")
FUNCTION = re.compile(r"(?<![.>\w])(~?\w+)\s*\(")
ACCESS = re.compile(r"^\s*(public|protected|private)\s*:")

Breach = tuple[int, str]


def blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def headline_breaches(source: str) -> Iterator[Breach]:
    """The first comment of a header."""
    comment = re.match(r"(?://[^\n]*\n)+", source)
    if not comment:
        yield 1, "the header has no headline"
        return
    text = re.sub(r"^// ?", "", comment[0], flags=re.M)
    words = WORDS.findall(text)
    if not words or words[0].lower() in NO_HEADLINES:
        yield 1, f"the headline begins with {words[0] if words else 'nothing'!r}, not with a noun or a verb"


def summary_breaches(source: str) -> Iterator[Breach]:
    """The documentation of types and functions."""
    for match in DOCUMENTED.finditer(source):
        begin = re.match(r"\s*/// (\w+)", match[1])
        word = begin[1].lower() if begin else ""
        is_type = DECLARES_TYPE.match(match[2]) is not None
        heads = NO_HEADLINES - {"at", "this"} if is_type else CLAUSE_HEADS - {"if", "while"}
        if word in heads and (is_type or "(" in match[2]):
            line = source.count("\n", 0, match.start()) + 1
            yield line, f"the documentation begins with {begin[1]!r}, not with a noun or a verb"


def phrase_breaches(name: str, source: str) -> Iterator[Breach]:
    """The phrases in the comments of a file, or in the text of a document."""
    if name.endswith(".md"):
        source = CODE_SPAN.sub(blank, source)
    else:
        pattern = PYTHON_COMMENT if name.endswith(".py") else COMMENT
        last, parts = 0, []
        for match in pattern.finditer(source):
            if match["comment"]:
                parts += [re.sub(r"[^\n]", " ", source[last:match.start()]), match[0]]
                last = match.end()
        source = "".join(parts)
    for match in PHRASE.finditer(source):
        yield source.count("\n", 0, match.start()) + 1, " ".join(WORDS.findall(match[0]))


class Scope:
    """A pair of braces: of a namespace, of a type, or of anything else."""

    def __init__(self, statement: str, parent: "Scope | None"):
        outer = parent is None or parent.kind == "namespace"
        self.name, self.access = "", "public"
        declared = TYPE.search(statement)
        if re.search(r"(?:^|\s)namespace\b|^\s*extern\s*$", statement):
            self.kind = "namespace"
        elif declared and "(" not in statement[declared.end():] and "=" not in statement[:declared.start()]:
            self.kind, self.name = "type", declared[1]
            self.access = "private" if re.search(r"\bclass\b", statement) and "enum" not in statement else "public"
        else:
            self.kind = "code"
        self.is_outer_type = self.kind == "type" and outer


def declarations(source: str) -> Iterator[tuple[int, str, str]]:
    """The (line, kind, name) of the types of namespaces, and of the public functions of types. Kinds are "type", "function"
    and "nullary": a function without parameters."""
    code = COMMENT.sub(lambda match: blank(match), source)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, code, flags=re.M)
    lines = [match.start() for match in re.finditer("\n", code)]
    scopes: list[Scope] = []
    begin = 0  # of the current statement
    for token in re.finditer(r"[{};:]", code):
        statement, inner = code[begin:token.start()], scopes[-1] if scopes else None
        if token[0] == ":":
            access = ACCESS.match(statement + ":")
            if access and inner and inner.kind == "type":
                inner.access, begin = access[1], token.end()
            continue
        line = bisect.bisect_left(lines, token.start()) + 1
        if token[0] == "}":
            if scopes:
                scopes.pop()
        elif inner and inner.kind == "type" and inner.access == "public":
            declared = re.sub(r"MR_\w+|alignas|noexcept", " ", statement.split("=")[0])
            function = FUNCTION.search(declared)
            if function and function[1] != inner.name and "using " not in statement and "override" not in statement:
                yield line, "nullary" if declared[function.end():].lstrip().startswith(")") else "function", function[1]
        if token[0] == "{":
            scopes.append(Scope(statement, inner))
            if scopes[-1].is_outer_type:
                yield line, "type", scopes[-1].name
        begin = token.end()


def name_breaches(source: str) -> Iterator[tuple[str, Breach]]:
    for line, kind, name in declarations(source):
        if kind == "type" and name in TYPES:
            yield "type", (line, f"{name} says nothing without its header; qualify it, as NodeKind")
        elif kind != "type" and name in SPEECH:
            yield "speech", (line, f"{name}() is a verb of speech; say what happens to the data")
        elif kind == "nullary" and name in WITHOUT_OBJECT:
            yield "object", (line, f"{name}() has no object")


def breaches(name: str, source: str) -> Iterator[tuple[str, Breach]]:
    """The breaches of one file, each with its rule."""
    is_header = name.endswith(".h") and name.startswith(("millrace/", "apps/"))
    if is_header:
        yield from (("headline", each) for each in headline_breaches(source))
        yield from (("summary", each) for each in summary_breaches(source))
        yield from name_breaches(source)
    yield from (("phrase", each) for each in phrase_breaches(name, source))


def main(root: pathlib.Path) -> int:
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    # The change log is a record: its old entries stay as they were written.
    files = [name for name in tracked(root)
             if name.endswith((".h", ".cc", ".cu", ".py", ".md")) and name != "CHANGELOG.md"
             and name != "tools/check_style.py"]
    for name in files:
        for rule, (line, what) in breaches(name, (root / name).read_text()):
            found[rule].append(f"{name}:{line}: {rule}: {what}")
    for lines in found.values():
        print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{len(files)} files; " + ", ".join(f"{rule}: {len(lines)}" for rule, lines in found.items()))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
