"""Checks the messages of errors. Prints each breach of a rule; exit status 1 if there is one.

    python3 tools/check_messages.py SOURCE_FOLDER

Looks at the texts in Fail(Code::…, "…") and Error(Code::…, "…") of millrace/ and apps/, without tests. The rules:

length   A line of a message has at most 160 characters of fixed text, and a message has at most two lines.
pronoun  A message does not begin with a pronoun. The context in front of a message varies, so a reader does not see what
         "it" is.
cure     In CURED, a message about something that the user can change (CHANGEABLE) says what to do or what is possible.
         Accepted are an imperative, a command in backticks, a flag, a key of the job file, a variable of the environment,
         and phrases such as "expected", "should be", "at most" and "are supported".

UNCHECKED has the messages of CURED that no cure can be named for, with the reason.
"""
import pathlib
import re
import sys
from collections.abc import Iterator

from check_layers import tracked

MOST_CHARACTERS, MOST_LINES = 160, 2
CURED = ("apps/", "millrace/transfer/", "millrace/tokenizer/", "millrace/mount/", "millrace/vfs/", "millrace/eval/",
         "millrace/plan/", "millrace/tracking/", "millrace/train/", "millrace/engine/", "millrace/data/",
         "millrace/serve/", "millrace/http/", "millrace/base/", "millrace/cache/", "millrace/object/", "millrace/s3d/",
         "millrace/jobs/", "millrace/checkpoint/convert/", "millrace/checkpoint/format/", "millrace/checkpoint/gguf/",
         "millrace/checkpoint/local/", "millrace/checkpoint/read/")
CHANGEABLE = {"kInvalidArgument", "kNotFound", "kPermissionDenied", "kAlreadyExists", "kPreconditionFailed", "kNotEmpty",
              "kBusy"}
UNCHECKED = {text: reason for reason, texts in {
    "another function makes the text": (
        "{}", "{}{}", "{}: {}", "{}; {}", "{}:{}: {}", "{}:{}:{}: {}", "{}:{}:{}: {}{}{}", "{}{}{}{}{}", "line {}: {}",
        "{}: token ids {}", r'\"{}\" names no access point of S3: {}', "this machine has no role; {}",
        "JSON schema, {}: {}", "regular expression, byte {}: {}"),
    "the table of options has the cure": ("--{} is an option of Mountpoint: {}",),
    "the role of the folder has the cure": (
        "{} {} is not used: {}{}", "{} {} is not used: {}; {}",
        r'{} {} is not used: it serves Millrace as \"{}\", not as \"{}\"; {}',
        "{} {} is not used: it is not empty, and nothing in it says that Millrace made it; {}"),
    "a program on a mount gets the number of the error only": (
        "no file {}", "no directory {}", "no link {}", "there is a {}", "{} exists", "{} is not a symbolic link",
        "inode {} is no symbolic link"),
    "a mount wrote the name itself": ("a mount does not show {}",),
    "the code that calls passes another size": ("{} bytes of {} do not fill a tensor of {} elements",),
    "a rank asks another, and looks elsewhere": ("step and attempt {} {} are not here",),
    "the author of the template wrote the text": ("the template refuses: {}",),
}.items() for text in texts}

LITERAL = r'"(?:\\.|[^"\\\n])*"'
MESSAGE = re.compile(rf"\b(?:Fail|Error)\(\s*Code::(k\w+)\s*,\s*(?:fmt::format\(\s*)?((?:{LITERAL}\s*)+)")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
PRONOUN = re.compile(r"(?:it|its|they|their|these|those)\b")
VERBS = """add allow ask begin bring build call change check choose close compare configure convert copy correct create declare
decrease define delete disable do download drop enable encode end escape export fix free freeze give go group have hold import
increase install join keep leave let list load look lower make mark merge mount move name open order pack pass point prefix
put quote raise read reduce remove rename repeat replace reset resume retry return run save say see select set shorten
specify spell split start stop store take tell train try turn unmount update upgrade upload use wait wrap write""".split()
IMPERATIVE = re.compile(r"(?:^|[;:.(,] ?|\b(?:or|and|then) )(?:" + "|".join(VERBS) + r")\b", re.I)
SECTIONS = "checkpoint|data|eval|log|lora|model|optimizer|run|serve|source|tokenizer|train"
POSSIBLE = re.compile(rf"`|--[a-z]|\b(?:{SECTIONS})\.[a-z_]+|\b[A-Z][A-Z0-9]+_[A-Z_0-9]+\b|\b(?:expected|must|only|required|instead"
                      r"|such as|allowed|needs?|may be|may have|can be|has to|have to|up to|between)\b|\bat (?:least|most)\b"
                      r"|\bshould (?:be|have|hold|begin|end)\b|\bwants\b|\btakes\b|\bis not one of\b|\bfrom \S+ (?:to|on)\b"
                      r"|\bknown are\b|\bare supported\b|\bor\b.*\?")


def messages(source: str) -> Iterator[tuple[int, str, str]]:
    """The line, the code and the text of each message, but for those in comments."""
    for match in MESSAGE.finditer(source):
        if "//" in source[source.rfind("\n", 0, match.start()) + 1:match.start()]:
            continue
        literals = re.findall(LITERAL, match[2])
        yield source.count("\n", 0, match.start()) + 1, match[1], "".join(literal[1:-1] for literal in literals)


def breaches(source: str, needs_cure: bool) -> Iterator[tuple[int, str]]:
    """The lines, from 1, of messages that breach a rule, and what is wrong."""
    for line, code, text in messages(source):
        parts = PLACEHOLDER.sub("", text).split("\\n")
        if len(parts) > MOST_LINES or max(map(len, parts)) > MOST_CHARACTERS:
            yield line, f"the message is longer than {MOST_LINES} lines of {MOST_CHARACTERS} characters: {text}"
        if PRONOUN.match(text):
            yield line, f"the message begins with a pronoun; name the thing: {text}"
        has_cure = text in UNCHECKED or IMPERATIVE.search(text) or POSSIBLE.search(text)
        if needs_cure and code in CHANGEABLE and not has_cure:
            yield line, f"the message names no cure: {text}"


def main(root: pathlib.Path) -> int:
    files = [file for file in tracked(root) if file.startswith(("millrace/", "apps/")) and file.endswith((".cc", ".h"))
             and not file.endswith("_test.cc") and "/testing/" not in file]
    found = [f"{file}:{line}: {breach}" for file in files
             for line, breach in breaches((root / file).read_text(), file.startswith(CURED))]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(files)} files, {len(found)} messages to mend")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
