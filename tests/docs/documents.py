"""The command blocks of a Markdown document, and how they are told from the rest.

A command block is a fence of `sh` or `bash`, or a block indented by four spaces. A comment before a block changes that:

    <!-- not run: REASON -->         it is no command, or one that cannot run in a test; REASON says why
    <!-- run with: PROGRAM … -->     it is left out, and said so, where a program is missing
"""
import dataclasses
import pathlib
import re

FENCE = re.compile(r"^(`{3,})\s*(\w*)\s*$")
MARK = re.compile(r"^<!-- (not run|run with): (.+) -->$")


@dataclasses.dataclass
class Block:
    line: int  # of its first line, from 1
    text: str
    not_run: str = ""  # the reason
    programs: tuple[str, ...] = ()


def command_blocks(document: pathlib.Path) -> list[Block]:
    lines = document.read_text(encoding="utf-8").splitlines()
    blocks, last, at = [], "", 0  # last: the line before that is not empty
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith(fence[1]))
            if fence[2] in ("sh", "bash"):
                blocks.append(_block(at + 2, lines[at + 1:end], last))
            last, at = "```", end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()) and not _in_list(last):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            blocks.append(_block(at + 1, [line[4:] for line in lines[at:end]], last))
            last, at = lines[end - 1], end
        else:
            last, at = lines[at] if lines[at].strip() else last, at + 1
    return blocks


def _block(line: int, lines: list[str], before: str) -> Block:
    block = Block(line, "\n".join(lines).strip("\n") + "\n")
    mark = MARK.match(before)
    if mark and mark[1] == "not run":
        block.not_run = mark[2]
    elif mark:
        block.programs = tuple(mark[2].split())
    return block


def _in_list(line: str) -> bool:
    return bool(re.match(r"^\s*([-*]|\d+\.)\s", line)) or (line.startswith("  ") and not line.startswith("    "))
