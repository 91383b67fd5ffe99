#!/usr/bin/env python3
"""Compares our templates with Jinja as transformers sets it up.

    chat_templates.py published|random --render build/release/bin/render_templates [--seed 1] [--count 4000]

published: the chat templates that trl ships, over conversations of many forms. random: templates made of random tags,
operators, filters and methods. The texts must be equal. Where Jinja raises, ours must fail too; where ours says that it
does not support something, by name, the case does not count.

Exit status: 0 none differs, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", ""))


def into_peers():
    """Goes on in the environment of the peers, which has transformers."""
    python = PEERS / "venv/bin/python"
    if not os.environ.get("MILLRACE_PEERS") or not python.exists():
        print("skipped: MILLRACE_PEERS has no venv with transformers")
        sys.exit(77)
    if pathlib.Path(sys.executable) != python:
        os.execv(python, [str(python), *sys.argv])


into_peers()
try:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from transformers.utils.chat_template_utils import _compile_jinja_template
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, template, variables):
        self.process.stdin.write(json.dumps({"template": template, "variables": variables}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


OBJECTS = re.compile(r"Markup\(|<generator|<bound|<function|<built-in|<method|reverseiterator|<reversed| object at 0x|Undefined|<Namespace|<Loop")


def jinja(template, variables):
    try:
        text = _compile_jinja_template(template).render(**variables)
        return {"object": text} if OBJECTS.search(text) else {"text": text}
    except Exception as error:  # whatever Python raises within a template
        return {"error": f"{type(error).__name__}: {error}"}


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather, \"roughly\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Größe <b>"}, "unit": {"type": "string", "enum": ["c", "f"]},
                                     "days": {"type": ["integer", "null"], "default": 3}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call_1234x", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "deep": {"a": [1, None, True, 0.5]}}}}]}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": " You are brief. \n"}, {"role": "user", "content": " Hi, \n 数据? "}],
    "turns": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "And 2 + 2?"}],
    "answered": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a\n"}],
    "thinks": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "<think>\nlong\n</think>\n\nshort"},
               {"role": "user", "content": "v"}],
    "reasons": [{"role": "user", "content": "u"}, {"role": "assistant", "reasoning_content": "why", "content": "so"},
                {"role": "user", "content": "v"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "tools": [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "call_1234x", "content": "{\"t\": 21}"},
              {"role": "assistant", "content": "21 degrees."}, {"role": "user", "content": "Thanks"}],
    "two_tools": [{"role": "user", "content": "Weather?"}, {**CALL, "tool_calls": CALL["tool_calls"] * 2},
                  {"role": "tool", "content": "x"}, {"role": "tool", "content": "y"}],
    "developer": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}],
    "wrong": [{"role": "user", "content": "u"}, {"role": "user", "content": "v"}],
    "empty": [],
}


def published(ours, _):
    folder = PEERS / "trainers/trl/chat_templates"
    templates = sorted(folder.glob("*.jinja"))
    if not templates:
        print("skipped: the peers have no trl")
        sys.exit(77)
    for path in templates:
        template = path.read_text()
        for name, prompt, tools, thinks in itertools.product(CONVERSATIONS, (False, True), (None, [TOOL]), (None, False, True)):
            variables = {"messages": CONVERSATIONS[name], "add_generation_prompt": prompt, "tools": tools, "documents": None,
                         "bos_token": "<s>", "eos_token": "</s>"}
            if thinks is not None:
                variables["enable_thinking"] = thinks
            yield f"{path.name} {name} prompt={prompt} tools={bool(tools)} thinks={thinks}", template, variables


class Maker:
    """Makes random templates."""

    NAMES = ["text", "words", "numbers", "member", "people", "flag", "nothing", "absent", "n", "x", "nested"]
    FILTERS = ["trim", "length", "upper", "lower", "capitalize", "title", "string", "list", "first", "last", "tojson", "default('d')", "default('d', true)",
               "join", "join(', ')", "join('-', attribute='name')", "replace('a', 'b')", "replace('', '.')", "int", "float", "abs", "round", "round(1)",
               "sort", "sort(reverse=true)", "dictsort", "items|list", "unique|list", "reverse", "sum", "min", "max", "map('upper')|list", "map(attribute='name')|list",
               "select('string')|list", "reject('none')|list", "selectattr('name')|list", "selectattr('age', '>', 3)|list", "rejectattr('name', 'eq', 'Ada')|list",
               "indent", "indent(2, true)", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "safe", "count", "batch(2)",
               "tojson(separators=(',', ':'))", "trim('a')", "select('defined')|list", "select|list", "map('length')|list", "d(1)"]
    METHODS = ["strip()", "lstrip()", "rstrip('ab')", "split()", "split(' ')", "split('a', 1)", "rsplit(None, 1)", "splitlines()", "startswith('a')",
               "endswith(('b', 'c'))", "upper()", "lower()", "title()", "capitalize()", "replace('a', 'xy')", "replace('a', 'xy', 1)", "find('b')", "rfind('a')",
               "count('a')", "index('a')", "join(['x', 'y'])", "items()", "keys()", "values()", "get('name')", "get('zz', 7)", "isdigit()", "isalpha()",
               "partition('a')", "removeprefix('a')", "append(1)", "name", "age", "zz", "update({})"]
    TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence", "odd",
             "even", "divisibleby(2)", "divisibleby 3", "eq(1)", "equalto 'a'", "in([1, 'a'])", "gt 2", "ne none", "lower", "upper", "sameas(none)", "callable"]
    LITERALS = ["1", "0", "-3", "2.5", "1e3", "'a'", "' ab a\\n'", "\"it's\"", "true", "false", "none", "[]", "[1, 2, 'a']", "(1, 2)", "{}", "{'a': 1, 'b': [2]}",
                "'é\\u00fc'", "10000000000", "'a' 'b'", "(1,)", "True", "None"]

    def __init__(self, rng):
        self.rng = rng

    def pick(self, choices):
        return self.rng.choice(choices)

    def expression(self, depth=0):
        if depth > 2 or self.rng.random() < 0.45:
            return self.pick(self.NAMES if self.rng.random() < 0.6 else self.LITERALS)
        inner = lambda: self.expression(depth + 1)
        kind = self.rng.randrange(16)
        if kind < 4:
            return f"{inner()}|{self.pick(self.FILTERS)}"
        if kind < 6:
            return f"({inner()}).{self.pick(self.METHODS)}"
        if kind == 6:
            return f"{inner()} is {self.pick(['', 'not '])}{self.pick(self.TESTS)}"
        if kind == 7:
            return f"({inner()} {self.pick(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {inner()})"
        if kind == 8:
            return f"({inner()} {self.pick(['==', '!=', '<', '>=', 'in', 'not in'])} {inner()})"
        if kind == 9:
            return f"({inner()} {self.pick(['and', 'or'])} {inner()})"
        if kind == 10:
            return f"(not {inner()})"
        if kind == 11:
            return f"({inner()} if {inner()}{self.pick(['', ' else ' + inner()])})"
        if kind == 12:
            if self.rng.random() < 0.5:  # not of literals, whose slices Jinja computes while it compiles, by other rules
                return f"({self.pick(self.NAMES)})[{self.pick(['1:', ':2', '::-1', '1:-1', '::2', '-2:', 'n:', ':n', '-9:9:3'])}]"
            return f"({inner()})[{self.pick(['0', '-1', '5', '-9', 'n', inner()])}]"
        if kind == 13:
            return f"[{inner()}, {inner()}]"
        if kind == 14:
            return f"{{'k': {inner()}, {inner()}: 1}}" if self.rng.random() < 0.3 else f"{{'k': {inner()}}}"
        return self.pick(["range(3)|list", "range(1, 9, 3)|list", "range(5, 0, -2)|list", "dict(a=1)", "dict({'z': 2}, a=1)", "namespace(a=1).a", "loop.index",
                          "loop.last", "loop.previtem", "ns.v", "m(1)", "m('a', b=2)", "m()", "-n", "+n", "2 ** 3", "-2 ** 2", "n ~ 1 * 2"])

    def tag(self, content):
        left, right = self.pick(["", "", "-", "+"]), self.pick(["", "", "-", "+"])
        return f"{{%{left} {content} {right}%}}"

    def space(self):
        return self.pick(["", "", " ", "\n", "  \n", "\n  ", "x", " y ", "\n\n", "é", "\t", "{ }", "{# c #}", "{#- c\n -#}", "\n {# c #}\n"])

    def block(self, depth=0):
        return self.space() + "".join(self.statement(depth) + self.space() for _ in range(self.rng.randrange(1, 4)))

    def statement(self, depth):
        kind = self.rng.randrange(12) if depth < 3 else 0
        if kind < 4:
            left, right = self.pick(["", "", "-"]), self.pick(["", "", "-"])
            return f"{{{{{left} {self.expression()} {right}}}}}"
        if kind == 4:
            otherwise = self.pick(["", self.tag("else") + self.block(depth + 1), self.tag(f"elif {self.expression()}") + self.block(depth + 1)])
            return self.tag(f"if {self.expression()}") + self.block(depth + 1) + otherwise + self.tag("endif")
        if kind in (5, 6):
            head = self.pick([f"for x in {self.expression()}", f"for x in {self.pick(['words', 'numbers', 'people', 'member', 'text'])}",
                              f"for k, x in {self.pick(['member.items()', 'member|dictsort', 'nested.items()'])}",
                              f"for x in numbers if {self.expression()}"])
            ends = self.pick(["", "", self.tag(f"if {self.expression()}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")])
            otherwise = self.pick(["", "", self.tag("else") + self.block(depth + 1)])
            return self.tag(head) + self.block(depth + 1) + ends + otherwise + self.tag("endfor")
        if kind == 7:
            return self.tag(f"set {self.pick(['x', 'n', 'y'])} = {self.expression()}")
        if kind == 8:
            return self.tag(f"set ns.v = {self.expression()}")
        if kind == 9:
            return self.tag("set y") + self.block(depth + 1) + self.tag("endset") + "{{ y }}"
        if kind == 10:
            return self.tag("generation") + self.block(depth + 1) + self.tag("endgeneration")
        return self.tag("raw") + "{{ x }} {% if %}" + self.tag("endraw")

    def template(self):
        # Set before they are read: Jinja finds no variable of a name that is set further down.
        head = "{%- set ns = namespace(v=0) -%}{%- set x, y, n = 'x', 2, 4 -%}" + self.pick(["{%- macro m(a, b='z') -%}[{{ a }}{{ b }}{{ n }}]{%- endmacro -%}", ""])
        return head + self.block() + self.pick(["", "\n", "\n\n"])


VARIABLES = {"text": " abc ab\na ", "words": ["beta", "Alpha", "gamma", "alpha"], "numbers": [3, 1, 2.5, -4], "member": {"name": "Ada", "age": 36, "x y": None},
             "people": [{"name": "Ada", "age": 5}, {"name": "Bob", "age": 2}, {"name": "Cy", "age": 9}], "flag": True, "nothing": None, "n": 4,
             "nested": {"b": {"c": [1, [2, "é'\""]]}, "a": "q\"'\\\n<&>"}}


def random_templates(ours, arguments):
    rng = random.Random(arguments.seed)
    for i in range(arguments.count):
        yield f"seed {arguments.seed}, {i}", Maker(rng).template(), VARIABLES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["published", "random"])
    parser.add_argument("--render", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--show", type=int, default=5, help="differences that are printed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of Python, about templates that cannot work
    ours = Renderer(arguments.render)
    equal = failed = refused = objects = different = 0
    reasons = {}
    for name, template, variables in (published if arguments.mode == "published" else random_templates)(ours, arguments):
        theirs, mine = jinja(template, variables), ours(template, variables)
        if mine.get("code") == "unsupported":
            refused += 1
            reason = mine["error"].split(": ", 1)[-1]
            reasons[reason] = reasons.get(reason, 0) + 1
        elif "object" in theirs:
            objects += 1
        elif "text" in theirs and theirs == mine:
            equal += 1
        elif "error" in theirs and "error" in mine:
            failed += 1
        else:
            different += 1
            if different <= arguments.show:
                print(f"--- {name}\n{template if arguments.mode == 'random' else ''}\n  jinja: {theirs}\n  ours:  {mine}")
    print(f"{equal} equal, {failed} fail with both, {refused} not supported, {objects} print objects of Python, {different} differ")
    for reason, count in sorted(reasons.items(), key=lambda each: -each[1])[:10]:
        print(f"  {count} × {reason}")
    if arguments.mode == "published" and refused:
        sys.exit("a published template is not supported")
    if equal < (equal + failed + refused) / 4:
        sys.exit("too few cases were compared")
    sys.exit(different > 0)


main()
