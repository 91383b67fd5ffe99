"""Records a run of Millrace in Weights & Biases.

Standard input has a JSON object a line: first the run, then its events. Standard output answers the first line with
{"ready": …} or {"error": …}, and has {"warning": …} and {"info": …} later. README.md has the protocol.
"""

import json
import math
import netrc
import os
import signal
import sys
import urllib.parse


def number(value):
    """Returns a number of JSON, where NaN and the infinities are texts."""
    return float(value) if isinstance(value, str) else value


def has_key(environment):
    """Returns whether there is a key for the server, as `wandb login` and WANDB_API_KEY leave it."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlparse(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    path = environment.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class Run:
    """A run of W&B. Its steps are those of Millrace, under the name "step"."""

    def __init__(self, wandb, run, reply):
        self._run, self._reply = run, reply
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step", step_sync=True)
        # W&B drops what is logged for an earlier step of its own count. A run that goes on from a checkpoint makes
        # some steps again, so W&B's count goes on, and "step" says which step it was.
        self._row = run.step - 1
        self._step = None

    def take(self, event):
        kind = event["event"]
        if kind == "metrics":
            self._log(event["step"], {name: number(value) for name, value in event["metrics"].items()})
        elif kind == "checkpoint":
            self._checkpoint(event)
        elif kind == "end":
            return self._end(event["ending"])
        return None

    def lost(self):
        """The program of the run ended without a word."""
        self._run.finish(exit_code=1)

    def _log(self, step, values):
        if step != self._step:
            self._step, self._row = step, max(step, self._row + 1)
        self._run.log({**values, "step": step}, step=self._row)

    def _checkpoint(self, event):
        if event.get("error"):
            self._run.summary["checkpoint/error"] = event["error"]
            return
        values = {f"checkpoint/{name}": event[name] for name in ("step", "bytes", "seconds")}
        self._run.log(values, step=max(self._row, 0))
        self._run.summary["checkpoint/tier"] = event["tier"]
        if event.get("url"):
            self._run.summary["checkpoint/url"] = event["url"]

    def _end(self, ending):
        # "preempted" is W&B's word for a run that was asked to leave and may go on.
        if ending == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if ending == "finished" else 1)
        return {"ended": ending}


def open_run(wandb, hello, reply):
    mode = hello["mode"]
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if has_key(os.environ) else "offline")
        if mode == "offline" and not os.environ.get("WANDB_MODE"):
            reply(warning="no key of W&B was found, so the run is recorded on the disk; `wandb sync` uploads it")
    options = {
        "project": hello["project"] or os.environ.get("WANDB_PROJECT") or hello["job"],
        "entity": hello["entity"] or None,
        "name": hello["name"] or None,
        "group": hello["group"] or None,
        "tags": hello["tags"] or None,
        "id": hello["id"] or None,
        "dir": hello["folder"] or None,
        "settings": wandb.Settings(console="off", silent=True),
    }
    # Names in the environment decide where the job file says nothing. An id of the user's decides in any case.
    if os.environ.get("WANDB_RUN_ID"):
        options["id"] = os.environ["WANDB_RUN_ID"]
    try:
        run = wandb.init(mode=mode, resume="allow" if mode == "online" else None, **options)
    except (wandb.errors.UsageError, wandb.errors.AuthenticationError):
        raise
    except Exception as error:
        if mode != "online":
            raise
        wandb.teardown()
        reply(warning=f"the server of W&B cannot be reached ({first_line(error)}), so the run is recorded on the disk; "
                      "`wandb sync` uploads it")
        mode = "offline"
        run = wandb.init(mode=mode, **options)
    run.config.update({name: number_or_text(value) for name, value in hello["parameters"].items()},
                      allow_val_change=True)
    run.config.update({"attempt": hello["attempt"], "resumed_from": hello["resumed_from"]}, allow_val_change=True)
    return run, mode


def number_or_text(value):
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 2**53:
        return int(value)
    return value


def first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0]


def main():
    # The program that trains says when it ends. A signal to all processes of the job must not end this one before.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    # Processes of wandb inherit neither pipe, and what libraries print is not an answer.
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def reply(**values):
        try:
            answers.write(json.dumps(values) + "\n")
            answers.flush()
        except OSError:
            pass  # the program has ended; its run is still to be closed

    # A folder of the working directory that is called wandb is no library.
    sys.path[:] = [path for path in sys.path if path]
    hello = json.loads(next(lines))
    try:
        import wandb
        wandb.init, wandb.Settings
    except (ImportError, AttributeError) as missing:
        return reply(error=f"{sys.executable} has no package wandb ({first_line(missing)}): "
                           f"`{sys.executable} -m pip install wandb`, or set log.python")
    try:
        run, mode = open_run(wandb, hello, reply)
    except Exception as error:
        return reply(error=first_line(error))
    target = Run(wandb, run, reply)
    reply(ready={"mode": mode, "id": run.id, "folder": os.path.dirname(run.dir), "url": (run.url or "") if mode == "online" else ""})
    failed = False
    for line in lines:
        try:
            ended = target.take(json.loads(line))
        except Exception as error:
            if not failed:
                reply(warning=f"W&B did not take an event ({first_line(error)})")
            failed = True
            continue
        if ended:
            return reply(**ended)
    target.lost()


main()
