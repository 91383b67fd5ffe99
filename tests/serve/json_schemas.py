#!/usr/bin/env python3
"""Texts that the grammars of JSON schemas allow, beside jsonschema, a validator that knows nothing of Millrace.

    json_schemas.py --texts PROGRAM

For random schemas: each text that a grammar draws satisfies its schema, and each instance that jsonschema takes, written
with the schema's members in their order, is one that the grammar allows.
Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]

venv = pathlib.Path(os.environ.get("MILLRACE_PEERS", ROOT / "build" / "peers")) / "venv" / "bin" / "python"
if venv.exists() and pathlib.Path(sys.prefix) != venv.parents[1]:
    os.execv(venv, [str(venv), *sys.argv])
try:
    import jsonschema
except ImportError as error:
    print(f"{error.name} is not installed")
    sys.exit(SKIPPED)

SCHEMAS = 600
FORMATS = ["date", "ipv4", "ipv6", "email", "uuid"]  # what jsonschema checks without other packages
STRINGS = ["", "a", "x-1", "abc", "né", "2024-02-29", "2023-02-29", "10.0.0.1", "::1", "a@b.org", "\"\\",
           "123e4567-e89b-12d3-a456-426614174000"]
NAMES = ["a", "ab", "b", "né", "x-1"]


def number(rng):
    return rng.choice([rng.randint(-30, 30), round(rng.uniform(-3, 3), rng.randint(0, 2))])


def make(rng, depth):
    """A schema of the supported keywords."""
    kind = rng.choice(["integer", "number", "string", "boolean", "null", "enum", "array", "object", "map", "allOf",
                       "anyOf", "ref"] if depth else ["integer", "number", "string", "boolean", "null", "enum"])
    if kind in ("integer", "number"):
        schema = {"type": kind}
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if rng.random() < 0.25:
                schema[key] = number(rng)
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice([2, 3, 0.5, 10])
        return schema
    if kind == "string":
        schema = {"type": "string"}
        schema.update(rng.choice([{}, {"minLength": 1}, {"maxLength": 3}, {"pattern": "^x-"}, {"pattern": "b|^a$"},
                                  {"format": rng.choice(FORMATS)}]))
        return schema
    if kind == "enum":
        return {"enum": rng.sample([1, 2.5, "a", "né", None, True, [1]], 3)}
    if kind == "array":
        schema = {"type": "array", "items": make(rng, depth - 1)}
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, 2)
        if rng.random() < 0.5:
            schema["maxItems"] = schema.get("minItems", 0) + rng.randint(0, 2)
        if rng.random() < 0.3:
            schema["prefixItems"] = [make(rng, depth - 1)]
        return schema
    if kind == "object":
        names = rng.sample(NAMES, 2)
        schema = {"type": "object", "properties": {name: make(rng, depth - 1) for name in names},
                  "required": rng.sample(names, rng.randint(0, 2))}
        if rng.random() < 0.6:
            schema["additionalProperties"] = rng.choice([False, make(rng, 0)])
        return schema
    if kind == "map":
        schema = {"type": "object", "additionalProperties": make(rng, depth - 1)}
        schema.update(rng.choice([{}, {"minProperties": 1}, {"maxProperties": 2}, {"propertyNames": {"maxLength": 2}}]))
        return schema
    if kind == "ref":
        return {"$ref": "#/$defs/shared"}
    if kind in ("allOf", "anyOf"):
        return {kind: [make(rng, depth - 1) for _ in range(2)]}
    return {"type": kind}


def instance(rng, schema, shared, depth=3):
    """A value that may satisfy the schema, or not."""
    if "$ref" in schema:
        return instance(rng, shared, shared, depth)
    for key in ("allOf", "anyOf"):
        if key in schema:
            return instance(rng, rng.choice(schema[key]), shared, depth)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return rng.randint(-30, 30) if kind == "integer" else number(rng)
    if kind == "string":
        return rng.choice(STRINGS)
    if kind == "array":
        parts = schema.get("prefixItems", [])
        return [instance(rng, parts[i] if i < len(parts) else schema["items"], shared, depth - 1)
                for i in range(rng.randint(0, 3))]
    if kind == "object":
        value = {name: instance(rng, each, shared, depth - 1) for name, each in schema.get("properties", {}).items()
                 if name in schema["required"] or rng.random() < 0.5}
        if isinstance(schema.get("additionalProperties"), dict):
            for name in rng.sample(NAMES, rng.randint(0, 2)):
                if name not in schema.get("properties", {}):
                    value[name] = instance(rng, schema["additionalProperties"], shared, depth - 1)
        return value
    return {"boolean": rng.random() < 0.5, "null": None}[kind]


def is_written(value):
    """Whether numbers are written as the grammars write them: no exponent, an integer without a point."""
    if isinstance(value, float):
        return not value.is_integer() and "e" not in repr(value)
    if isinstance(value, (list, dict)):
        return all(is_written(each) for each in (value.values() if isinstance(value, dict) else value))
    return True


def has(schema, keyword):
    if isinstance(schema, dict):
        return keyword in schema or any(has(each, keyword) for each in schema.values())
    return isinstance(schema, list) and any(has(each, keyword) for each in schema)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", required=True)
    arguments = parser.parse_args()
    rng = random.Random(7)
    counts = {"refused": 0, "impossible": 0, "drawn": 0, "taken": 0, "left": 0}
    with subprocess.Popen([arguments.texts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        for seed in range(SCHEMAS):
            shared = make(rng, 1)
            while "$ref" in json.dumps(shared):
                shared = make(rng, 1)
            schema = {**make(rng, 3), "$defs": {"shared": shared}}
            validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
            values = [value for value in (instance(rng, schema, shared) for _ in range(20)) if is_written(value)]
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            program.stdin.write(json.dumps({"schema": schema, "texts": texts, "draw": 10, "seed": seed}) + "\n")
            program.stdin.flush()
            answer = json.loads(program.stdout.readline())
            if "error" in answer:
                # A schema with a part that nothing satisfies is refused as a whole.
                counts["refused" if answer["code"] == "unsupported" else "impossible"] += 1
                continue
            for text in answer["drawn"]:
                assert validator.is_valid(json.loads(text)), (schema, text)
            for value, text, fits in zip(values, texts, answer["fits"]):
                valid = validator.is_valid(value)
                assert not fits or valid, (schema, text, "is not valid, and fits")
                # Of members of two schemas, the order is that of the first.
                assert fits or not valid or has(schema, "allOf"), (schema, text, "is valid, and does not fit")
                counts["taken" if fits else "left"] += 1
            counts["drawn"] += len(answer["drawn"])
        program.stdin.close()
    print(counts)
    assert counts["refused"] + counts["impossible"] < SCHEMAS / 3 and counts["drawn"] > 2000, counts
    assert counts["taken"] > 1000 and counts["left"] > 300, counts


if __name__ == "__main__":
    main()
