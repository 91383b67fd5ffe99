"""Finds MR_TRY where its early return leaks memory. Prints each breach; exit status 1 if there is one.

    python3 tools/check_initializers.py SOURCE_FOLDER

MR_TRY returns out of a statement expression. If such a return leaves a list in braces, the code of g++ 12 does not
destroy what the list has initialized before:

    struct Login { std::string user, password; };
    Result<Login> Read() { return Login{MR_TRY(ReadUser()), MR_TRY(ReadPassword())}; }  // may leak the user

The same holds for the captures of a lambda, and for the memory of a new-expression. So this check allows MR_TRY only in
the first initializer of braces, only in the first capture, and not in the initializer of a new object. It allows a
function within the list, which returns to the list. The cure is to give the value a name, or to assign the member
afterwards.

Calls of functions and of constructors destroy their arguments. Aggregates initialized with parentheses do not, but the
text does not tell them from calls, so they pass. If the first named member of an aggregate is not its first member, the
defaults of those before it leak too, and this passes as well.
"""
import pathlib
import re
import sys

from check_layers import tracked

# Brackets in these are no code. Numbers are matched too, because a quote in a number begins no character.
NOT_CODE = re.compile(r"""//[^\n]* | /\*.*?\*/ | R"(?P<end>[^\s()\\]*)\(.*?\)(?P=end)"
                          | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | (?P<number>\b\d[\w'.]*)""", flags=re.S | re.X)
MACRO_HEAD = re.compile(r"^[ \t]*\#[ \t]*define[ \t]+\w+\([^)]*\)", flags=re.M)
# Commas of these separate no initializers.
TEMPLATE_ARGUMENTS = re.compile(r"(?<=\w)<[\w:,*&\s<>]*>(?=[({:])")
CAPTURE_DEFAULT = re.compile(r"(?<=\[)[&=],")
TOKEN = re.compile(r"[()\[\]{},;]|\bMR_(?:\w+_)?TRY\b")
NEW_OBJECT = re.compile(r"\bnew\s+[\w:]+\s*$")
SUBSCRIPTED = re.compile(r"(?:[)\]]|\b(?!return\b)\w+)\s*$")


def code_of(source: str) -> str:
    """The source with spaces in the place of comments, literals, heads of macros and what only looks like a list."""
    def blank(match):
        return match[0] if match.groupdict().get("number") else re.sub(r"[^\n]", " ", match[0])

    for pattern in (NOT_CODE, MACRO_HEAD, TEMPLATE_ARGUMENTS, CAPTURE_DEFAULT):
        source = pattern.sub(blank, source)
    return source


class Bracket:
    """An opening bracket and what the text up to now says of it."""

    def __init__(self, opening: str, before: str):
        self.commas = 0
        self.is_block = False  # of statements
        is_capture = opening == "[" and not SUBSCRIPTED.search(before)
        self.is_list = opening == "{" or is_capture  # of initializers, unless it is a block
        self.is_of_new = opening in "({" and NEW_OBJECT.search(before) is not None


def early_returns(code: str) -> list[tuple[int, list[tuple[Bracket, int]]]]:
    """Each MR_TRY's position, and the brackets around it, the innermost first, with their commas before MR_TRY."""
    found, open_brackets = [], []
    for token in TOKEN.finditer(code):
        text = token[0]
        if text in "([{":
            open_brackets.append(Bracket(text, code[max(0, token.start() - 200):token.start()]))
        elif text.startswith("MR_"):
            found.append((token.start(), [(bracket, bracket.commas) for bracket in reversed(open_brackets)]))
        elif not open_brackets:
            continue
        elif text in ")]}":
            open_brackets.pop()
        elif text == ",":
            open_brackets[-1].commas += 1
        else:
            open_brackets[-1].is_block = True  # only blocks have semicolons, and the parentheses of `for`
    return found


def leaks(enclosing: list[tuple[Bracket, int]]) -> str | None:
    """What a return out of these brackets leaks."""
    for bracket, commas in enclosing:
        if bracket.is_block and bracket.is_list:
            return None
        if bracket.is_list and commas > 0:
            return "what the list has initialized before"
        if bracket.is_of_new:
            return "the memory of the new object"
    return None


def breaches(source: str) -> list[tuple[int, str]]:
    """The lines, from 1, whose MR_TRY leaks something, and what."""
    code = code_of(source)
    return [(code.count("\n", 0, position) + 1, leaked) for position, enclosing in early_returns(code)
            if (leaked := leaks(enclosing))]


def main(root: pathlib.Path) -> int:
    files = [file for file in tracked(root) if file.endswith((".cc", ".h"))]
    found = [f"{file}:{line}: if MR_TRY returns here, g++ 12 leaks {leaked}; give the value a name before"
             for file in files for line, leaked in breaches((root / file).read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(files)} files, {len(found)} early returns that leak")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
