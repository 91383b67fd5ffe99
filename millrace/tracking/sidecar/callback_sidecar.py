"""Calls the functions of a user's file with the events of a run of Millrace.

Standard input has a JSON object a line: first {"file": …}, then the events. Standard output answers the first line with
{"ready": {"handlers": […]}} or {"error": …}, and has {"warning": …} later. README.md has the protocol.
"""

import importlib.util
import json
import os
import signal
import sys
import traceback

HANDLERS = ("on_plan", "on_step", "on_evaluation", "on_checkpoint", "on_restart", "on_end")


def load(path):
    sys.path[:] = [os.path.dirname(path), *(entry for entry in sys.path if entry)]
    spec = importlib.util.spec_from_file_location("millrace_callbacks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handlers = {name: getattr(module, name) for name in HANDLERS if callable(getattr(module, name, None))}
    if not handlers:
        raise LookupError(f"it defines none of {', '.join(HANDLERS)}")
    return handlers


def place_of(error, path):
    """Returns what went wrong, and the last line of the user's file on the way there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{path}{where}: {type(error).__name__}: {error}"


def main():
    # The program that trains says when it ends. A signal to all processes of the job must not end this one before.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    # Processes of the user's file inherit neither pipe, and what it prints goes where the program's errors go.
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)

    def reply(**values):
        try:
            answers.write(json.dumps(values) + "\n")
            answers.flush()
        except OSError:
            pass  # the program has ended

    path = json.loads(next(lines))["file"]
    try:
        handlers = load(path)
    except BaseException as error:  # also what a file does that calls sys.exit()
        return reply(error=place_of(error, path))
    reply(ready={"handlers": sorted(handlers)})
    failed = set()
    for line in lines:
        event = json.loads(line)
        name = event.pop("handler")
        handler = handlers.get(name)
        try:
            if handler:
                handler(event)
        except BaseException as error:
            if name not in failed:
                traceback.print_exc()
                reply(warning=f"{name} failed, {place_of(error, path)}")
            failed.add(name)
        if name == "on_end":
            break
    return reply(ended=True)


main()
