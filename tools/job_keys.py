#!/usr/bin/env python3
"""Writes what is made from the declarations of the job file's keys (millrace/jobs/spec/*_fields.h): the tables of
docs/guide/job-file.md and the types of python/millrace/job.py.

    job_keys.py PROGRAM           rewrites them; PROGRAM is a built `millrace`
    job_keys.py PROGRAM --check   compares them, and ends with status 1 if one is out of date

A table of the guide stands behind a comment that names its section, such as `<!-- keys: train.optimizer -->`. With a
condition, `<!-- keys: run; run.launcher: ssh -->`, it has the keys that only that condition allows. The section's other
table then lacks them. `<!-- words -->` stands before the table of other programs' words.
"""
import difflib
import json
import keyword
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide" / "job-file.md"
MODULE = ROOT / "python" / "millrace" / "job.py"
ABSENT, GIVEN = "(absent)", "(given)"


class Keys:
    """The keys of a schema, by section."""

    def __init__(self, schema):
        self.schema = schema
        self.sections = {}  # path -> {name: property}
        self._walk("", schema)

    def _walk(self, path, schema):
        self.sections[path] = schema["properties"]
        for name, key in schema["properties"].items():
            whole = f"{path}.{name}" if path else name
            for part in [key, *key.get("anyOf", ())]:
                if "properties" in part:
                    self._walk(whole, part)
            if "properties" in key.get("items", ()):
                self._walk(whole + "[]", key["items"])

    def find(self, path):
        section, _, name = path.rpartition(".")
        return self.sections[section][name]


def number(value):
    """A number as the guide writes it."""
    if isinstance(value, int) and value >= 1 << 31:
        power = value.bit_length() - 1
        return f"2^{power}" if value == 1 << power else f"2^{power + 1}-1" if value == (2 << power) - 1 else str(value)
    if isinstance(value, float):
        text = f"{value:g}"
        if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
            text = re.sub(r"(\.0)?e([+-])0*", r"e\2", f"{value:g}" if "e" in f"{value:g}" else f"{value:.0e}")
            text = text.replace("e+", "e")
        return text
    return str(value)


def code(word):
    return f"`{word}`"


def in_bytes(value):
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if value and value % (1 << power) == 0:
            return f"{value >> power}{unit}"
    return str(value)


def values_of(key):
    """What may stand there."""
    if "x-form" in key:
        return key["x-form"]
    if "anyOf" in key:
        return ", ".join(values_of(part) for part in key["anyOf"] if not part.get("x-alias"))
    if "enum" in key:
        return ", ".join(str(word).lower() if isinstance(word, bool) else code(word) for word in key["enum"])
    kind = key.get("type")
    if kind == "boolean":
        return "true, false"
    if kind in ("integer", "number"):
        most = number(key["maximum"]) if "maximum" in key else ""
        return f"{number(key['minimum'])} … {most}".strip()
    if kind == "array" and key.get("maxItems") == 2:
        return f"two of {values_of(key['items'])}"
    if kind == "array":
        return f"list of {values_of(key['items'])}"
    return {"string": "text", "object": "map"}[kind]


def value_text(key, value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(key.get("type"), list):
        return in_bytes(value)
    if isinstance(value, (int, float)):
        return number(value) if value >= 1 << 40 else f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        if not value:
            return "none"
        return "[" + ", ".join(str(each) for each in value) + "]"
    if isinstance(value, dict):
        return "none"
    return code(value) if value else "none"


def default_of(path, key):
    if key.get("x-required"):
        return "*required*"
    if "x-unset" in key:
        return key["x-unset"]
    if "properties" in key or any("properties" in part for part in key.get("anyOf", ())):
        return "none" if path in WITHOUT_TABLE else "below"
    if "default" not in key:
        return "none"
    text = value_text(key, key["default"])
    for other in key.get("x-defaults", ()):
        text += f"; {', '.join(code(word) for word in other['only'][-1]['values'])}: {value_text(key, other['default'])}"
    return text


def condition_text(keys, section, condition):
    """The sentence that says where a key may stand."""
    name, values = condition["key"], condition["values"]
    short = name[len(section) + 1:] if name.rpartition(".")[0] == section else name
    if values == [GIVEN]:
        return f"Only with `{short}`."
    if values == [ABSENT]:
        return f"Not with `{short}`."
    other = keys.find(name)
    others = [word for word in other.get("enum", ()) if word not in values]
    negated = 0 < len(others) < len(values) or (len(others) == len(values) and other.get("default") in values)
    words = others if negated else values
    words = [f"`{short}: {words[0]}`", *(code(word) for word in words[1:])]
    listed = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"{'Not' if negated else 'Only'} with {listed}."


def row(keys, section, name, key, known=None):
    """`known`: a condition that the table's heading says."""
    values = values_of(key)
    if "x-unit" in key and "x-form" not in key:
        values += f" {key['x-unit']}"
    parts = [key["description"]]
    conditions = [condition_text(keys, section, each) for each in key.get("x-only", ()) if each != known]
    parts += [" ".join(conditions).replace(". Only with", ", and")] if conditions else []
    if key["x-since"] != keys.schema["properties"]["name"]["x-since"]:
        parts.append(f"Since {key['x-since']}.")
    default = default_of(f"{section}.{name}", key)
    return f"| `{name}` | {values} | {default} | {' '.join(parts)} |"


def table(keys, section, condition, taken):
    """The rows of a section: those of a condition; without one, all that no other table has."""
    lines = ["| Key | Values | Default | Meaning |", "|---|---|---|---|"]
    for name, key in keys.sections[section].items():
        only = key.get("x-only", [])
        if key.get("x-alias") or not key.keys() & {"type", "anyOf", "enum"}:
            continue  # a table by hand has the keys of a family, whose types only the family knows
        if condition is None and any(each in taken for each in only):
            continue
        if condition is None or condition in only:
            lines.append(row(keys, section, name, key, condition))
    return lines


def words_table(keys):
    lines = ["| Word | Of | Here |", "|---|---|---|"]
    for word in keys.schema["x-words"]:
        if "section" in word:
            continue  # the tables of train.parallel have it
        advice = re.sub(r"\b(?:train|model|data|lora|eval|checkpoint|log)\.[a-z_.]*[a-z]", lambda m: code(m[0]),
                        word["advice"].removeprefix("write "))
        lines.append(f"| `{word['word']}` | {word['programs']} | {advice} |")
    return lines


MARK = re.compile(r"<!-- keys: (?P<section>[\w.\[\]]*)(?:; (?P<key>[\w.]+): (?P<values>[\w, ()]+))? -->$")


def parse_condition(match, keys):
    if match["key"] is None:
        return None
    values = [word.strip() for word in match["values"].split(",")]
    values = [{"given": GIVEN, "absent": ABSENT}.get(word, word) for word in values]
    return {"key": match["key"], "values": values}


def guide_text(keys, text):
    lines = text.splitlines()
    marks = [match for line in lines if (match := MARK.match(line))]
    taken = {}
    for match in marks:
        if (condition := parse_condition(match, keys)) is not None:
            taken.setdefault(match["section"], []).append(condition)
    out, skipping = [], False
    for line in lines:
        if skipping and line.startswith("|"):
            continue
        skipping = False
        out.append(line)
        match = MARK.match(line)
        if match:
            section = match["section"] if match["section"] != "job" else ""
            out += table(keys, section, parse_condition(match, keys), taken.get(match["section"], []))
            skipping = True
        elif line == "<!-- words -->":
            out += words_table(keys)
            skipping = True
    shown = {match["section"] for match in marks}
    missing = [path for path in keys.sections if (path or "job") not in shown and path not in WITHOUT_TABLE]
    if missing:
        raise SystemExit(f"{GUIDE}: has no table of {', '.join(missing)}")
    return "\n".join(out) + "\n"


#: Sections whose keys other tables of the guide say: three have one or two keys, and eval's sources are data's.
WITHOUT_TABLE = ("train.profile", "log.histograms", "run.elastic", "eval.sources[]", "log.metric_definitions[]")


def camel(path):
    """The name of a type: of a section, an element of a list, or a key's words."""
    name = "".join(word.title() for part in path.split(".") for word in part.strip("[]").split("_")) or "Job"
    return name.removesuffix("s") if path.endswith("[]") else name


def python_type(path, key):
    if "properties" in key:
        return camel(path)
    if "anyOf" in key:
        return "Union[" + ", ".join(python_type(path, part) for part in key["anyOf"]) + "]"
    if "enum" in key:
        return "Literal[" + ", ".join(repr(word).replace("'", '"') for word in key["enum"]) + "]"
    kind = key.get("type")
    if isinstance(kind, list):
        return "Union[" + ", ".join(python_type(path, {"type": each}) for each in kind) + "]"
    if kind == "array":
        return f"List[{python_type(path + '[]', key['items'])}]"
    if kind == "object":
        inner = key.get("additionalProperties")
        return f"Dict[str, {python_type(path, inner)}]" if isinstance(inner, dict) else "Dict[str, Any]"
    return {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}.get(kind, "Any")


def json_text(value):
    return json.dumps(value).replace("true", "True").replace("false", "False")


def module_text(keys):
    out = ['"""The keys of a job file as Python types: tools/job_keys.py makes this module from the declarations of the keys.',
           "",
           "Each section is a dict with typed keys, which can be written as keyword arguments:",
           "",
           '    job = millrace.job.Job(name="small", train=millrace.job.Train(steps=1000, precision="bf16"), data=…)',
           "    millrace.Estimator(job=job)",
           "",
           "Type checkers know the words of each key. `millrace job render` and the Estimator check the values.",
           '"""',
           "",
           "# fmt: off",
           "from __future__ import annotations",
           "",
           "from typing import Any, Dict, List, Literal, TypedDict, Union",
           ""]
    seen = set()
    for section in sorted(keys.sections, key=lambda path: -path.count(".") - (path != "") - 2 * path.endswith("[]")):
        name = camel(section)
        if name == "EvalSource":
            continue  # as DataSource
        fields = []
        for key_name, key in keys.sections[section].items():
            if key.get("x-alias"):
                continue
            path = f"{section}.{key_name}" if section else key_name
            kind = python_type(path, key).replace("EvalSource]", "DataSource]")
            if kind.startswith("Literal[") and key_name != "held_out":
                alias = camel(path)
                out.append(f"{alias} = {kind}")
                kind = alias
            fields.append((key_name, kind, key.get("description", "")))
        assert name not in seen, name
        seen.add(name)
        out.append("")
        plain = [field for field in fields if not keyword.iskeyword(field[0]) and field[0].isidentifier()]
        others = [field for field in fields if field not in plain]
        base = "TypedDict"
        if others:
            pairs = ", ".join(f'"{field}": {kind}' for field, kind, _ in others)
            out += [f'_{name} = TypedDict("_{name}", {{{pairs}}}, total=False)', ""]
            base = f"_{name}"
        out += ["", f"class {name}({base}, total=False):"]
        out += [f'    """The section `{section}`."""' if section else '    """A job file."""', ""]
        for field, kind, sentence in plain:
            out += [f"    #: {sentence}" if sentence else "", f"    {field}: {kind}"]
        out += [""]
    out += ["", "#: Words of other programs, and the key of a job file that takes the same values."]
    out += ["WORDS: Dict[str, str] = {"]
    out += [f'    "{word["word"]}": "{word["key"]}",' for word in keys.schema["x-words"] if "key" in word]
    plain = {}
    for section, members in keys.sections.items():
        for name, key in members.items():
            if "[]" not in section and "properties" not in key and not key.get("x-alias"):
                plain[f"{section}.{name}" if section else name] = key
    out += ["}", "", "#: The type of each key, as JSON Schema names it; \"any\" of a key with several."]
    out += ["TYPES: Dict[str, str] = {"]
    for path, key in plain.items():
        kind = key.get("type", "string" if "enum" in key else "any")
        out.append(f'    "{path}": "{kind if isinstance(kind, str) else "any"}",')
    out += ["}", "", "#: The default of each key that has one.", "DEFAULTS: Dict[str, Any] = {"]
    out += [f'    "{path}": {json_text(key["default"])},' for path, key in plain.items() if "default" in key]
    out += ["}"]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(out)) + "\n"


def main():
    arguments = [each for each in sys.argv[1:] if each != "--check"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    printed = subprocess.run([arguments[0], "job", "schema"], capture_output=True, text=True, check=True).stdout
    keys = Keys(json.loads(printed))
    stale = 0
    for path, make in ((GUIDE, lambda text: guide_text(keys, text)), (MODULE, lambda _: module_text(keys))):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        made = make(text)
        if made == text:
            continue
        if "--check" not in sys.argv:
            path.write_text(made, encoding="utf-8")
            continue
        stale += 1
        print(*difflib.unified_diff(text.splitlines(), made.splitlines(), str(path), "as declared", n=0, lineterm=""), sep="\n")
        print(f"{path} is out of date: run tools/job_keys.py build/release/bin/millrace")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
