"""Writes the tables that the tokenizers are compiled with, from millrace/tokenizer/unicode/unicode-17.txt. The build runs it.

    python3 tools/unicode_tables.py UNICODE_17 unicode|wordpiece TABLES_CC

The references know Unicode in several versions at once. Hugging Face tokenizers 0.23.3 splits by categories of 16.0, normalizes as of 9.0,
cleans texts for BERT as of 8.0, and has the lower case of 17.0. Each table follows its version.
"""
import contextlib
import io
import pathlib
import sys

SPLITTING, NORMALIZING, CLEANING = 16, 9, 8  # versions of Unicode
REMOVED, SPACE, PUNCTUATION, STRIPPED, BARRIER = 1, 2, 4, 8, 16  # enum BertClass
CATEGORIES = ("Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs").split()  # enum Category
GRAPHEMES = "XX CN Linker Extend EX ZWJ RI PP SM L V T LV LVT Pictographic Consonant".split()  # enum Grapheme
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # is done by rule


class Unicode:
    """The characters of version 17.0, and what earlier versions knew of them."""

    def __init__(self, path):
        sections = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("@"):
                items = sections[line[1:].split()[0]] = []
            elif line and not line.startswith("#"):
                items += (item.partition("=")[::2] for item in line.split())
        self.category_17 = steps(sections["category"], str)
        self.age = steps(sections["age"], int)
        self.combining = steps(sections["combining"], int)
        self.grapheme = steps(sections["grapheme"], str)
        self.canonical, self.compatible = (
            {int(code, 16): [int(part, 16) for part in parts.split("+")] for code, parts in sections[name]}
            for name in ("canonical", "compatible"))
        self.excluded = {int(code, 16) for code, _ in sections["excluded"]}
        self.earlier = {int(code, 16): value.split(":") for code, value in sections["earlier"]}
        self.lower = {}
        for codes, first in sections["lower"]:
            codes, _, step = codes.partition("/")
            begin, _, end = codes.partition("-")
            for i, code in enumerate(range(int(begin, 16), int(end or begin, 16) + 1, int(step or 1))):
                self.lower[code] = int(first, 16) + i * int(step or 1)

    def category(self, code, version):
        category, last = self.earlier.get(code, ("", 0))
        if version <= int(last):
            return category
        return self.category_17[code] if self.age[code] <= version else "Cn"

    def apart(self, code, compatible):
        """The characters that a character of the version NORMALIZING is taken apart to, itself if it stays."""
        parts = self.canonical.get(code) or (compatible and self.compatible.get(code))
        if not parts or self.age[code] > NORMALIZING:
            return [code]
        return [part for one in parts for part in self.apart(one, compatible)]


def steps(items, kind):
    """The value of each code point, from the code points where it changes."""
    values = []
    ends = [int(code, 16) for code, _ in items[1:]] + [0x110000]
    for (_, value), end in zip(items, ends):
        values += [kind(value)] * (end - len(values))
    return values


def changes(values, last=None):
    """Numbers for each code point whose value is not that of the one before: the code point, shifted by 5 bits, and the value."""
    for code, value in values:
        if value != last:
            yield code << 5 | value
        last = value


def flat(mapping, shift):
    for code, parts in sorted(mapping.items()):
        yield code << shift | len(parts)
        yield from parts


def array(name, numbers):
    print(f"const std::uint32_t {name}[] = {{")
    line = ""
    for number in numbers:
        if len(line) > 100:
            print(line)
            line = ""
        line += f"{number},"
    print(f"{line}}};\nconst std::size_t {name}Count = sizeof {name} / sizeof {name}[0];\n")


def decompositions(data):
    """What NFD takes apart, but Hangul; and the combining classes of the characters that stay."""
    apart = {code: data.apart(code, False) for code in data.canonical if data.age[code] <= NORMALIZING}
    orders = {code: data.combining[code] for code in CODES
              if data.combining[code] and data.age[code] <= NORMALIZING and code not in apart}
    return apart, orders


def write_unicode(data):
    array("kCategoryRanges", changes((code, CATEGORIES.index(data.category(code, SPLITTING))) for code in range(0x110000)))

    def grapheme(code):
        kind = 0 if code in HANGUL or 0xD800 <= code < 0xE000 else GRAPHEMES.index(data.grapheme[code])
        known = data.category(code, SPLITTING) != "Cn" or GRAPHEMES[kind] in ("CN", "Pictographic")
        return kind if known else 0

    array("kGraphemeRanges", changes(((code, grapheme(code)) for code in range(0x110000)), 0))
    apart, orders = decompositions(data)
    array("kNfcOrders", (code << 8 | order for code, order in orders.items()))
    array("kNfcDecomposed", flat(apart, 3))
    array("kNfcPairs", (number for code in apart if (pair := data.canonical[code]) and len(pair) == 2 and code not in data.excluded
                        and not data.combining[code] and not data.combining[pair[0]] for number in (*pair, code)))
    compatible = {code: parts for code in CODES if (parts := data.apart(code, True)) != data.apart(code, False)}
    array("kCompatible", flat(compatible, 5))
    marks = [code for code in CODES if data.category(code, NORMALIZING).startswith("M")]
    array("kCombiningMarks", (code for i, code in enumerate(marks) for edge in (-1, 1)
                              if not 0 <= i + edge < len(marks) or marks[i + edge] != code + edge))


def bert_class(data, code):
    category, bits = data.category(code, CLEANING), 0
    if code in (0, 0xFFFD) or category in ("Cc", "Cf", "Co") and chr(code) not in "\t\n\r":
        bits |= REMOVED
    if chr(code) in "\t\n\r\u2028\u2029" or category == "Zs" and code != 0x20:
        bits |= SPACE
    if category.startswith("P") or 0x20 < code < 0x7F and not chr(code).isalnum():
        bits |= PUNCTUATION
    if category == "Mn":
        bits |= STRIPPED | BARRIER * (not data.combining[code] or data.age[code] > NORMALIZING)
    return bits


def write_wordpiece(data):
    apart, orders = decompositions(data)
    classes = {code: bert_class(data, code) for code in CODES}
    array("kBertClasses", changes(classes.items()))
    array("kBertOrders", (code << 8 | order for code, order in orders.items() if not classes[code] & STRIPPED))
    array("kBertStrippedMap", flat({code: [part for part in parts if not classes[part] & STRIPPED] for code, parts in apart.items()
                                    if not classes[code] & STRIPPED}, 3))
    # The full mapping of U+0130 (SpecialCasing.txt) is the only one of lower case without a condition that is longer.
    array("kBertLowered", flat({code: [lower] for code, lower in data.lower.items()} | {0x130: [0x69, 0x307]}, 3))


def main():
    source, part, target = sys.argv[1:]
    data = Unicode(pathlib.Path(source))
    headers, write = {"unicode": (("unicode/graphemes.h", "unicode/nfc.h", "unicode/unicode.h"), write_unicode),
                      "wordpiece": (("wordpiece/bert.h",), write_wordpiece)}[part]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        for header in headers:
            print(f'#include "millrace/tokenizer/{header}"')
        print("\nnamespace millrace::tokenizer {\n")
        write(data)
        print("}  // namespace millrace::tokenizer")
    pathlib.Path(target).write_text(text.getvalue(), encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
