"""A job that an Estimator started: its state, its output, its metrics. ``TrainingJob("name")`` is one of any job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import datetime
from decimal import Decimal
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from .errors import Error
from .programs import Program, ProgramError

#: What SageMaker calls the states of `millrace job status`.
STATUSES = {
    "queued": "InProgress",
    "starting": "InProgress",
    "running": "InProgress",
    "restarting": "InProgress",
    "stopping": "Stopping",
    "done": "Completed",
    "failed": "Failed",
    "interrupted": "Stopped",
    "lost": "Failed",
    "unknown": "InProgress",  # its scheduler does not answer
}

#: Seconds between two looks at a job. A guess: a look takes some milliseconds.
POLL_SECONDS = 0.2

_STEP_COLUMNS = ("grad_norm", "tokens_per_s", "step_s", "data_wait_s", "comm_wait_s", "checkpoint_wait_s")


class JobFailedError(Error):
    """A job ended without being done. ``job`` is the TrainingJob."""

    def __init__(self, message: str, job: "TrainingJob") -> None:
        super().__init__(message)
        self.job = job


def number(value: float) -> str:
    """Returns a number without an exponent: expressions such as ([0-9.]*) find all of it."""
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)


def line_of(values: Iterable[Tuple[str, Any]]) -> str:
    """Returns values as the line of a Python dict, the form in which transformers' Trainer prints its logs."""
    return "{" + ", ".join(f"'{name}': {number(value)}" for name, value in values if value is not None) + "}"


class Transcript:
    """Makes lines for readers, and rows of metrics, of the JSON that rank 0 of a job writes."""

    def __init__(self) -> None:
        self._plan: Dict[str, Any] = {}
        self._losses: List[float] = []
        self._step = 0
        self._rows: Dict[int, Dict[str, Any]] = {}

    def line(self, text: str) -> str:
        """Takes the next line of the output. Returns it for readers."""
        try:
            found = json.loads(text)
        except ValueError:
            return text
        if not isinstance(found, dict):
            return text
        event = found.get("event")
        if event is None and "loss" in found and "step" in found:
            return self._take_step(found)
        if event == "eval":
            return self._take_evaluation(found)
        if event == "plan":
            self._plan = found
            return (
                f"{found['name']}: {found['parameters']:,} parameters, {found['steps']} steps of {found['global_batch']} sequences "
                f"of {found['sequence_length']} tokens, on {found['ranks']} ranks; {found['records']:,} records"
                + (f"; goes on behind step {found['resumed_from']}" if found.get("resumed_from") else "")
            )
        if event == "checkpoint":
            return f"checkpoint of step {found['step']}: {found['bytes']:,} bytes, {found['seconds']:.2f} s"
        if event == "compiled":
            return f"compiled step {found['hash'][:12]}, from {found['from']}, in {found['seconds']:.2f} s"
        if event == "done" and "step" in found:
            return f"done: step {found['step']}"
        return text

    def summary(self, seconds: float) -> str:
        """Returns the line that transformers' Trainer prints at its end."""
        steps = self._step - self._plan.get("resumed_from", 0)
        samples = steps * self._plan.get("global_batch", 0)
        seconds = max(seconds, 1e-3)
        values: Dict[str, Any] = {
            "train_runtime": round(seconds, 4),
            "train_samples_per_second": round(samples / seconds, 3),
            "train_steps_per_second": round(steps / seconds, 3),
        }
        if self._losses:
            values["train_loss"] = round(sum(self._losses) / len(self._losses), 6)
        return line_of([*values.items(), ("epoch", self._epoch(self._step))])

    def note(self, values: Dict[str, Any]) -> None:
        """Adds metrics to the row of the step that was read last."""
        self._rows.setdefault(self._step, {"step": self._step}).update(values)

    def rows(self) -> List[Dict[str, Any]]:
        return [self._rows[step] for step in sorted(self._rows)]

    def _epoch(self, step: int) -> Optional[float]:
        steps = self._plan.get("steps_per_epoch", 0)
        return round(step / steps, 4) if steps else None

    def _take_step(self, found: Dict[str, Any]) -> str:
        self._step = found["step"]
        self._losses.append(found["loss"])
        row = {"epoch": self._epoch(self._step), "loss": found["loss"], "learning_rate": found.get("lr")}
        row.update((name, found[name]) for name in _STEP_COLUMNS if name in found)
        self.note(row)
        shown = ("loss", "grad_norm", "learning_rate", "epoch")
        return line_of([*((name, row.get(name)) for name in shown), ("step", self._step)])

    def _take_evaluation(self, found: Dict[str, Any]) -> str:
        self._step = found["step"]
        skipped = ("event", "step", "samples", "labels", "seconds")
        values = {
            f"eval_{name}": value
            for name, value in found.items()
            if name not in skipped and isinstance(value, (int, float))
        }
        self.note(values)
        return line_of([*values.items(), ("epoch", self._epoch(self._step)), ("step", self._step)])


class TrainingJob:
    """A job by its name. Other processes, and the commands `millrace job …`, see the same job."""

    def __init__(
        self,
        name: str,
        *,
        program: Optional[Program] = None,
        metric_definitions: Sequence[Dict[str, str]] = (),
        model_data: Optional[str] = None,
        process: "Optional[subprocess.Popen[bytes]]" = None,
    ) -> None:
        self.name = name
        #: The URL of the job's checkpoints, which `deploy` and `millrace serve` take.
        self.model_data = model_data
        self._program = program or Program()
        self._definitions = [(entry["Name"], re.compile(entry["Regex"])) for entry in metric_definitions]
        self._process = process  # kept, so that it is reaped
        self._was_stopped = False

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    @property
    def job_name(self) -> str:
        return self.name

    def status(self) -> Dict[str, Any]:
        """Returns what `millrace --json job status` prints. Errors: ProgramError if there is no such job."""
        if self._process is not None:
            self._process.poll()
        return self._program.json("job", "status", self.name)

    def describe(self) -> Dict[str, Any]:
        """Returns the state in the words of SageMaker's DescribeTrainingJob."""
        status = self.status()
        described: Dict[str, Any] = {
            "TrainingJobName": self.name,
            "TrainingJobStatus": self._word_of(status),
            "SecondaryStatus": status["state"],
            "TrainingTimeInSeconds": round(_seconds(status)),
        }
        if self.model_data is not None:
            described["ModelArtifacts"] = {"S3ModelArtifacts": self.model_data}
        if described["TrainingJobStatus"] == "Failed":
            described["FailureReason"] = status["message"]
        return described

    def wait(self, logs: Any = "All") -> None:
        """Blocks until the job has ended; prints its output meanwhile, unless ``logs`` is False or "None".

        A job that was stopped is no error. Interrupting the wait leaves the job running.
        Errors: JobFailedError if the job failed.
        """
        transcript = Transcript()
        shows = logs not in (False, None, "None", [])
        try:
            for line in self._follow():
                if shows:
                    print(transcript.line(line), flush=True)
                else:
                    transcript.line(line)
            while self._word_of(self.status()) in ("InProgress", "Stopping"):
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            print(f"the job goes on; `millrace job stop {self.name}` stops it", file=sys.stderr)
            raise
        status = self.status()
        if shows:
            print(transcript.summary(_seconds(status)), flush=True)
            print(f"{self.name}: {status['message']}", flush=True)
        if self._word_of(status) == "Failed":
            raise JobFailedError(f"job {self.name} {status['state']}: {status['message']}{self._last_errors()}", self)

    def logs(self, rank: int = 0, *, errors: bool = False, raw: bool = False) -> str:
        """Returns what a rank has written so far. ``errors``: to standard error. ``raw``: the JSON of rank 0 as it is."""
        text = self._program.output("job", "logs", self.name, "--rank", str(rank), *(["--errors"] if errors else []))
        if raw or errors or rank != 0:
            return text
        return "".join(line + "\n" for line in self._lines(Transcript(), text))

    def metrics(self) -> Any:
        """Returns the metrics so far, a row for each step that was logged: a pandas DataFrame, or without pandas a dict of
        lists. The columns are step, epoch, loss, learning_rate and others of the trainer, and the names of
        ``metric_definitions``, whose expressions are applied to the lines of ``logs()``."""
        transcript = Transcript()
        for line in self._lines(transcript, self._program.output("job", "logs", self.name)):
            for name, expression in self._definitions:
                found = expression.search(line)
                value = _float(found.group(1 if expression.groups else 0)) if found else None
                if value is not None:
                    transcript.note({name: value})
        return as_table(transcript.rows())

    def stop(self, wait: bool = True) -> None:
        """Asks the job to save a checkpoint and end, and waits until it has."""
        self._program.output("job", "stop", self.name, *([] if wait else ["--no-wait"]))
        self._was_stopped = True

    def _word_of(self, status: Dict[str, Any]) -> str:
        # A scheduler's job that was cancelled in the queue never had a supervisor that could say so.
        if status["state"] == "lost" and self._was_stopped:
            return "Stopped"
        return STATUSES.get(status["state"], "InProgress")

    def _lines(self, transcript: Transcript, text: str) -> Iterator[str]:
        for line in text.splitlines():
            yield transcript.line(line)
        status = self.status()
        if self._word_of(status) == "Completed":
            yield transcript.summary(_seconds(status))

    def _follow(self) -> Iterator[str]:
        """Yields the lines of rank 0 until the job ends."""
        follower = subprocess.Popen(
            self._program.command("job", "attach", self.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self._program.variables(),
        )
        assert follower.stdout is not None
        try:
            for line in follower.stdout:
                yield line.rstrip("\n")
        finally:
            follower.stdout.close()
            follower.terminate()
            follower.wait()

    def _last_errors(self) -> str:
        try:
            lines = self.logs(errors=True).splitlines()[-5:]
        except ProgramError:
            return ""
        return "".join(f"\n  {line}" for line in lines)


def as_table(rows: Sequence[Dict[str, Any]]) -> Any:
    """Returns rows as a pandas DataFrame, or without pandas as a dict of lists."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name) for row in rows] for name in columns}
    try:
        import pandas
    except ImportError:
        return table
    return pandas.DataFrame(table)


def _float(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(status: Dict[str, Any]) -> float:
    """Returns how long a job has run."""
    try:
        began, updated = (datetime.fromisoformat(status[key].replace("Z", "+00:00")) for key in ("started", "updated"))
    except (KeyError, ValueError):
        return 0.0
    return max(0.0, (updated - began).total_seconds())
