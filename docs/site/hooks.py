"""What MkDocs does with a page before it is made: Markdown as GitHub reads it becomes Markdown as Python-Markdown reads it."""
import re

LIST_ITEM = re.compile(r"( *)([-*]|\d+\.) ")
FENCE = re.compile(r" *(```+|~~~+)")


def on_page_markdown(markdown, **_):
    """Indents what belongs to a list's item by four spaces. GitHub takes two or three: the width of the item's mark."""
    out, levels, fence, blank = [], [], "", True  # levels: where the texts of the open items begin
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        if fence:
            out.append(_moved(line, levels, indent))
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if not line.strip():
            out.append("")
            blank = True
            continue
        item = LIST_ITEM.match(line)
        while levels and indent < levels[-1] and (item or blank):
            levels.pop()
        begins = FENCE.match(line)
        if begins:
            fence = begins[1]
        if item and indent <= (levels[-1] + 3 if levels else 3):
            if not levels and not blank and not LIST_ITEM.match(out[-1]) and not out[-1].startswith(" "):
                out.append("")  # a list may follow a paragraph at once
            out.append("    " * len(levels) + line.strip())
            levels.append(item.end())
        else:
            out.append(_moved(line, levels, indent))
        blank = False
    return "\n".join(out)


def _moved(line, levels, indent):
    if not levels or indent < levels[-1]:
        return line
    return "    " * len(levels) + line[levels[-1]:]
