#!/usr/bin/env python3
"""Calls of tools as the published chat templates write them, read back.

    tool_calls.py --read build/release/bin/read_calls

For each template that trl ships and that writes calls: what the template writes for an assistant's message with one call,
or with two, is the text of an answer. Its calls must be those of the message. Templates whose syntax is not supported
are named.

Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

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

ARGUMENTS = [{"city": "Zürich", "days": 2}, {"city": "} \"x\" {", "deep": {"a": [1, None, True, 0.5]}}]
NAMES = ["get_weather", "find"]
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}} for name in NAMES]


def calls(count, write):
    """Their arguments are as `write` makes them: some templates want an object, some its JSON."""
    return [{"type": "function", "id": f"call_123{i}", "function": {"name": NAMES[i], "arguments": write(ARGUMENTS[i])}}
            for i in range(count)]


def answer_of(template, message):
    """What the template writes for the message, behind the prompt; None if it writes no calls, or refuses them."""
    before = [{"role": "user", "content": "Weather?"}]
    variables = {"tools": TOOLS, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
    try:
        compiled = _compile_jinja_template(template)
        prompt = compiled.render(messages=before, add_generation_prompt=True, **variables)
        bare = compiled.render(messages=before, add_generation_prompt=False, **variables)
        whole = compiled.render(messages=[*before, message], add_generation_prompt=False, **variables)
    except Exception:  # whatever Python raises within a template
        return None
    for beginning in (prompt, bare):
        if whole.startswith(beginning):
            answer = whole[len(beginning):]
            return answer if NAMES[0] in answer else None
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", required=True)
    arguments = parser.parse_args()
    templates = sorted((PEERS / "trainers/trl/chat_templates").glob("*.jinja"))
    if not templates:
        print("skipped: the peers have no trl")
        sys.exit(77)
    right, wrong, unsupported, silent = [], [], [], []
    with subprocess.Popen([arguments.read], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        for path in templates:
            template = path.read_text()
            for count in (1, 2):
                answers = [answer_of(template, {"role": "assistant", "content": "", "tool_calls": calls(count, write)})
                           for write in (dict, json.dumps)]
                answer = next((each for each in answers if each is not None), None)
                if answer is None:
                    silent.append(f"{path.stem}/{count}")
                    continue
                program.stdin.write(json.dumps({"template": template, "text": answer, "names": NAMES}) + "\n")
                program.stdin.flush()
                read = json.loads(program.stdout.readline())
                if not read["known"]:
                    unsupported.append(f"{path.stem}/{count}")
                    continue
                found = [(call["name"], json.loads(call["arguments"])) for call in read["calls"]]
                wanted = list(zip(NAMES[:count], ARGUMENTS[:count]))
                (right if found == wanted else wrong).append(f"{path.stem}/{count}")
                if found != wanted:
                    print(f"{path.name}: wrote {answer!r}, read {read}")
        program.stdin.close()
    print(f"{len(right)} answers are read as they were written")
    print("no syntax that is supported:", *unsupported)
    print("no calls in an answer of their own:", *silent)
    assert not wrong and len(right) >= 20, (right, wrong)


if __name__ == "__main__":
    main()
