#!/usr/bin/env python3
"""Draws the ratios of the table in docs/benchmarks.md as a picture.

    benchmarks/picture.py docs/benchmarks.md docs/images/benchmarks.svg [--check]

A row has a mark for each figure of the form "2.0×" in its third column, and a bar that joins them with 1×. Rows that
speak of time in another form have no marks and are left out. With --check, nothing is written; the exit status is 1 if
the picture is not that of the table.
"""
import html
import math
import pathlib
import re
import sys

WIDTH, ROW, TOP = 900, 26, 54
LEFT, RIGHT = 400, 760  # of the scale
LEAST, MOST = 0.05, 300
# Both schemes set every colour, so that the picture is readable on any page.
STYLE = """
  .page { fill: #ffffff } text { fill: #24292f } .beside { fill: #57606a } .line { stroke: #d0d7de }
  .one { stroke: #57606a } .faster { fill: #2563a8 } .slower { fill: #b35900 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } text { fill: #e6edf3 } .beside { fill: #9198a1 } .line { stroke: #30363d }
    .one { stroke: #9198a1 } .faster { fill: #58a6ff } .slower { fill: #f0883e }
  }
"""


def rows(document: str) -> list[tuple[str, str, str, list[float]]]:
    """(what, beside, the cell, its ratios) of each row that has ratios."""
    found = []
    for line in document.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4:
            ratios = [float(ratio) for ratio in re.findall(r"([\d.]+)×", cells[2])]
            if ratios:
                found.append((cells[0], cells[1], cells[2], ratios))
    return found


def place(ratio: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(ratio / LEAST) / math.log(MOST / LEAST)


def shortened(text: str, most: int) -> str:
    return html.escape(text if len(text) <= most else text[:most - 1].rstrip(" ,") + "…")


def picture(table: list[tuple[str, str, str, list[float]]]) -> str:
    height = TOP + ROW * len(table) + 12
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
           f"<style>{STYLE}</style>", f'<rect class="page" width="{WIDTH}" height="{height}"/>',
           '<text x="12" y="20" font-size="14">Speed of Millrace, divided by that of the peer</text>']
    for ratio in (0.1, 0.3, 1, 3, 10, 30, 100):
        x = place(ratio)
        out.append(f'<line class="{"one" if ratio == 1 else "line"}" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8}"/>'
                   f'<text class="beside" x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{ratio:g}×</text>')
    for number, (what, beside, cell, ratios) in enumerate(table):
        y = TOP + ROW * number + ROW / 2
        first, last = place(min(1, *ratios)), place(max(1, *ratios))
        sides = [(first, place(1), "slower"), (place(1), last, "faster")]
        out.append(f'<text x="12" y="{y - 2:.1f}">{shortened(what, 62)}</text>'
                   f'<text class="beside" x="12" y="{y + 9:.1f}" font-size="9">{shortened(beside, 76)}</text>')
        out += [f'<rect class="{side}" x="{begin:.1f}" y="{y - 3:.1f}" width="{end - begin:.1f}" height="6" opacity="0.45"/>'
                for begin, end, side in sides if end - begin > 0.05]
        out += [f'<circle class="{"slower" if ratio < 1 else "faster"}" cx="{place(ratio):.1f}" cy="{y:.1f}" r="4"/>'
                for ratio in ratios]
        out.append(f'<text x="{RIGHT + 12}" y="{y + 4:.1f}">{html.escape(cell)}</text>')
    return "\n".join([*out, "</svg>\n"])


def main(document: pathlib.Path, image: pathlib.Path, checks: bool) -> int:
    drawn = picture(rows(document.read_text()))
    if not checks:
        image.write_text(drawn)
    elif image.read_text() != drawn:
        print(f"{image} is not drawn from {document}: run benchmarks/picture.py {document} {image}")
        return 1
    return 0


if __name__ == "__main__":
    paths = [pathlib.Path(argument) for argument in sys.argv[1:] if argument != "--check"]
    sys.exit(main(*paths, "--check" in sys.argv))
