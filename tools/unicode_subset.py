"""Writes millrace/tokenizer/unicode/unicode-17.txt: the part of Unicode's data files that the tokenizers need. The build makes tables of
it (millrace/tokenizer/unicode/make_tables.py).

    python3 tools/unicode_subset.py FOLDER > millrace/tokenizer/unicode/unicode-17.txt

FOLDER has the files of version 17.0, as Debian's package unicode-data 17.0.0 has them in /usr/share/unicode.
"""
import pathlib
import sys

CODES = 0x110000
# Categories that characters had in earlier versions, and the last of the versions that are used here which has them.
EARLIER = {0x295: "Ll:16", 0x166D: "Po:8", 0x1734: "Mn:8", 0x1885: "Lo:8", 0x1886: "Lo:8", 0x1CF2: "Mc:9", 0x1CF3: "Mc:9",
           0xA9BD: "Mc:8", 0x111C9: "Po:9", 0x1171E: "Mn:8"}
OLDEST = 8  # the oldest version that is used


def rows(path):
    """(code point, the other fields) of a data file of Unicode."""
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = [field.strip() for field in line.split("#")[0].split(";")]
        if fields[0]:
            first, _, last = fields[0].partition("..")
            for code in range(int(first, 16), int(last or first, 16) + 1):
                yield code, fields[1:]


def characters(path):
    """(code point, fields) of UnicodeData.txt, whose ranges are two lines."""
    first = None
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split(";")
        code = int(fields[0], 16)
        if fields[1].endswith("First>"):
            first = code
            continue
        for one in range(code if first is None else first, code + 1):
            yield one, fields
        first = None


def section(name, meaning, items):
    print(f"\n@{name} {meaning}")
    line = ""
    for item in items:
        if len(line) + len(item) > 98:
            print(line)
            line = ""
        line += (" " if line else "") + item
    print(line)


def changes(values):
    """Each code point whose value is not that of the one before."""
    last = None
    for code, value in enumerate(values):
        if value != last:
            yield f"{code:X}={value}"
        last = value


def runs(mapping):
    """FIRST-LAST/STEP=VALUE: characters a step apart whose values are as far apart."""
    codes = sorted(mapping)
    while codes:
        first = codes[0]
        best = [first]
        for step in (1, 2):
            run = [first]
            while mapping.get(run[-1] + step) == mapping[first] + run[-1] + step - first:
                run.append(run[-1] + step)
            if len(run) > len(best):
                best, best_step = run, step
        taken = set(best)
        codes = [code for code in codes if code not in taken]
        if len(best) == 1:
            yield f"{first:X}={mapping[first]:X}"
        else:
            yield f"{first:X}-{best[-1]:X}/{best_step}={mapping[first]:X}"


def grapheme_classes(folder):
    """What the rules of UAX 29 ask, by the short names of Grapheme_Cluster_Break; EX with its Indic_Conjunct_Break."""
    names = {"Control": "CN", "CR": "CN", "LF": "CN", "Extend": "EX", "ZWJ": "ZWJ", "Regional_Indicator": "RI", "Prepend": "PP",
             "SpacingMark": "SM", "L": "L", "V": "V", "T": "T"}
    classes = ["XX"] * CODES
    for code, fields in rows(folder / "auxiliary/GraphemeBreakProperty.txt"):
        classes[code] = names.get(fields[0], "XX")  # LV and LVT are told by rule
    for code, fields in rows(folder / "emoji/emoji-data.txt"):
        if fields[0] == "Extended_Pictographic" and classes[code] == "XX":
            classes[code] = "Pictographic"
    for code, fields in rows(folder / "DerivedCoreProperties.txt"):
        if fields[0] == "InCB" and (classes[code], fields[1]) in (("EX", "Linker"), ("EX", "Extend"), ("XX", "Consonant")):
            classes[code] = fields[1]
    return classes


def main():
    folder = pathlib.Path(sys.argv[1])
    categories, combining, ages = ["Cn"] * CODES, [0] * CODES, {}
    canonical, compatible, lower = {}, {}, {}
    for code, fields in characters(folder / "UnicodeData.txt"):
        categories[code], combining[code] = fields[2], int(fields[3])
        parts = [part for part in fields[5].split() if not part.startswith("<")]
        if parts:
            (compatible if fields[5].startswith("<") else canonical)[code] = "+".join(f"{int(part, 16):X}" for part in parts)
        if fields[13]:
            lower[code] = int(fields[13], 16)
    for code, fields in rows(folder / "DerivedAge.txt"):
        ages[code] = max(OLDEST, int(fields[0].split(".")[0]))
    assert max(ages.values()) == 17, "the files are not of Unicode 17.0"
    known, age = [], OLDEST
    for code in range(CODES):
        age = ages.get(code, age)
        known.append(age)
    excluded = {code for code, _ in rows(folder / "CompositionExclusions.txt")}
    print("# The part of Unicode 17.0's data files that tokenizers need, made by tools/unicode_subset.py.\n"
          "# Copyright 1991-2025 Unicode, Inc. Unicode License v3: see THIRD_PARTY_NOTICES.md.\n#\n"
          "# Code points are hexadecimal. A=X: in sections that name it, X holds up to the next item.")
    section("category", "General_Category; up to the next item", changes(categories))
    section("earlier", "A=X:V: up to version V, the character has the category X", (f"{code:X}={EARLIER[code]}" for code in sorted(EARLIER)))
    section("age", f"Age, the first version that has the character, at least {OLDEST}; up to the next item", changes(known))
    section("combining", "Canonical_Combining_Class; up to the next item", changes(combining))
    section("canonical", "Decomposition_Mapping, one step", (f"{code:X}={canonical[code]}" for code in sorted(canonical)))
    section("compatible", "Decomposition_Mapping of compatibility, one step", (f"{code:X}={compatible[code]}" for code in sorted(compatible)))
    section("excluded", "Composition_Exclusion", (f"{code:X}" for code in sorted(excluded)))
    section("lower", "Simple_Lowercase_Mapping; A-B/S=X: A is X, A+S is X+S, up to B", runs(lower))
    section("grapheme", "classes of grapheme clusters; up to the next item", changes(grapheme_classes(folder)))


if __name__ == "__main__":
    sys.exit(main())
