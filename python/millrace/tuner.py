"""SageMaker's HyperparameterTuner on Millrace: `millrace job sweep` over the job of an Estimator.

    tuner = millrace.Tuner(estimator, "eval_loss", {"learning_rate": millrace.ContinuousParameter(1e-5, 1e-2)},
                           objective_type="Minimize", max_jobs=20, max_parallel_jobs=4, early_stopping_type="Auto")
    tuner.fit({"train": "s3://corpus/wiki/"})
    tuner.best_training_job()
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import time
from datetime import datetime
from typing import Any, Dict, List, Optional, Sequence, Union

from .endpoint import Endpoint
from .errors import InvalidArgumentError, UnsupportedError
from .estimator import Estimator, Model
from .hyperparameters import DIRECT
from .programs import ProgramError, clean_message
from .training_job import POLL_SECONDS, JobFailedError, TrainingJob, as_table

__all__ = ["CategoricalParameter", "ContinuousParameter", "IntegerParameter", "Tuner"]

#: What SageMaker calls the states of a sweep's runs.
STATUSES = {
    "waiting": "InProgress",
    "running": "InProgress",
    "done": "Completed",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Stopped",
}

#: From this ratio of its ends on, a range whose scaling_type is Auto is drawn by logarithms.
WIDE_RANGE = 100

#: The exit status of a sweep of which some runs failed.
_PARTLY = 3


class _Range:
    """A range of numbers. ``scaling_type``: Auto, Linear or Logarithmic."""

    def __init__(self, min_value: float, max_value: float, scaling_type: str = "Auto") -> None:
        if scaling_type not in ("Auto", "Linear", "Logarithmic"):
            raise UnsupportedError(f"scaling_type={scaling_type!r}: it may be Auto, Linear or Logarithmic")
        if not min_value < max_value or not all(map(math.isfinite, (min_value, max_value))):
            raise InvalidArgumentError(f"a range from {min_value} to {max_value}: the first must be the smaller one")
        self.min_value, self.max_value, self.scaling_type = min_value, max_value, scaling_type


class ContinuousParameter(_Range):
    """Numbers from ``min_value`` to ``max_value``. Auto is Logarithmic if the one is at least a hundred times the other."""

    def values(self) -> str:
        """Returns the range as `millrace job sweep --vary` takes it."""
        wide = self.min_value > 0 and self.max_value / self.min_value >= WIDE_RANGE
        if self.scaling_type == "Logarithmic" and self.min_value <= 0:
            raise InvalidArgumentError(f"a Logarithmic range from {self.min_value}: it begins above 0")
        draws = "log" if self.scaling_type == "Logarithmic" or (self.scaling_type == "Auto" and wide) else "uniform"
        return f"{draws}:{float(self.min_value)!r}..{float(self.max_value)!r}"


class IntegerParameter(_Range):
    """Whole numbers from ``min_value`` to ``max_value``, both included."""

    def values(self) -> str:
        """Returns the range as `millrace job sweep --vary` takes it."""
        if self.scaling_type == "Logarithmic":
            raise UnsupportedError("scaling_type='Logarithmic': whole numbers are drawn evenly; leave it out")
        if int(self.min_value) != self.min_value or int(self.max_value) != self.max_value:
            raise InvalidArgumentError(f"an IntegerParameter from {self.min_value} to {self.max_value}")
        return f"int:{int(self.min_value)}..{int(self.max_value)}"


class CategoricalParameter:
    """One of some values."""

    def __init__(self, values: Union[Sequence[Any], Any]) -> None:
        self.choices = list(values) if isinstance(values, (list, tuple)) else [values]
        if not self.choices:
            raise InvalidArgumentError("a CategoricalParameter needs values")

    def values(self) -> str:
        """Returns the values as `millrace job sweep --vary` takes them."""
        return ",".join(json.dumps(choice, ensure_ascii=False) for choice in self.choices)


class Tuner:
    """Runs the job of an estimator with several values of its hyperparameters, and finds the best.

    ``objective_metric_name``: loss, eval_loss or another metric of the trainer, or a Name in ``metric_definitions``, which
    take the place of the estimator's. ``hyperparameter_ranges``: by the names that the estimator's hyperparameters have, or
    keys of the job file. ``strategy``: Random; Grid, for CategoricalParameters; or Hyperband, which is Random with asynchronous
    successive halving. ``early_stopping_type="Auto"``: the median rule.
    """

    def __init__(
        self,
        estimator: Estimator,
        objective_metric_name: str,
        hyperparameter_ranges: Dict[str, Any],
        metric_definitions: Optional[Sequence[Dict[str, str]]] = None,
        strategy: str = "Random",
        objective_type: str = "Maximize",
        max_jobs: Optional[int] = None,
        max_parallel_jobs: int = 1,
        early_stopping_type: str = "Off",
        base_tuning_job_name: Optional[str] = None,
        random_seed: int = 1,
        min_steps: Optional[int] = None,
    ) -> None:
        if strategy not in ("Random", "Grid", "Hyperband"):
            raise UnsupportedError(f"strategy={strategy!r}: it may be Random, Grid or Hyperband")
        if objective_type not in ("Maximize", "Minimize"):
            raise InvalidArgumentError(f"objective_type={objective_type!r}: it may be Maximize or Minimize")
        if early_stopping_type not in ("Off", "Auto"):
            raise InvalidArgumentError(f"early_stopping_type={early_stopping_type!r}: it may be Off or Auto")
        if strategy == "Hyperband" and early_stopping_type == "Auto":
            raise InvalidArgumentError("early_stopping_type: Hyperband stops runs by itself; leave it Off")
        if not hyperparameter_ranges:
            raise InvalidArgumentError("hyperparameter_ranges: name at least one hyperparameter")
        categorical = all(isinstance(each, CategoricalParameter) for each in hyperparameter_ranges.values())
        if strategy == "Grid" and not categorical:
            raise InvalidArgumentError("strategy='Grid': every range must be a CategoricalParameter")
        if strategy == "Grid" and max_jobs is not None:
            grid = math.prod(len(each.choices) for each in hyperparameter_ranges.values())
            if max_jobs != grid:
                raise InvalidArgumentError(f"max_jobs={max_jobs}: the grid has {grid} combinations; leave it out")
        if max_parallel_jobs < 1 or (max_jobs is not None and max_jobs < 1):
            raise InvalidArgumentError("max_jobs and max_parallel_jobs: must be at least 1")
        if estimator.is_script and estimator.launcher == "local" and max_parallel_jobs > 1:
            raise UnsupportedError("max_parallel_jobs: the folders of a script are mounted at one place; give 1 here")
        self.estimator = estimator
        self._metric, self._definitions = objective_metric_name, list(metric_definitions or ())
        self._ranges = dict(hyperparameter_ranges)
        self._keys = {name: _key_of(name, estimator.is_script) for name in hyperparameter_ranges}
        self._strategy, self._mode = strategy, "max" if objective_type == "Maximize" else "min"
        self._jobs = None if strategy == "Grid" else max_jobs or 1
        self._parallel, self._seed, self._min_steps = max_parallel_jobs, random_seed, min_steps
        self._stops = "asha" if strategy == "Hyperband" else "median" if early_stopping_type == "Auto" else "none"
        self._base_name = base_tuning_job_name
        self._program = estimator.program
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        #: The name of the last `fit`'s sweep, which `millrace job sweep status` takes.
        self.latest_tuning_job: Optional[str] = None
        self._model_root: Optional[str] = None

    def fit(self, inputs: Any = None, wait: bool = True, job_name: Optional[str] = None) -> None:
        """Starts the runs, and with ``wait`` blocks until all have ended, printing what becomes of them.

        Errors: ProgramError if a check fails; nothing has been started then. JobFailedError if all runs failed meanwhile.
        """
        text, name, self._model_root = self.estimator.render_for_sweep(
            inputs,
            list(self._ranges),
            job_name=job_name,
            base_name=self._base_name,
            definitions=self._definitions,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            command = self._program.command("--json", "job", "sweep", path, *self._arguments(name))
            with open(os.path.join(folder, "errors"), "w+b") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=self._program.variables(),
                    start_new_session=True,
                )
                while not self._has_started(name):
                    if self._process.poll() not in (None, 0, _PARTLY) and not self._has_started(name):
                        errors.seek(0)
                        raise ProgramError(
                            clean_message(errors.read().decode(errors="replace")), self._process.returncode
                        )
                    time.sleep(POLL_SECONDS)
        self.latest_tuning_job = name
        if wait:
            self.wait()

    def wait(self) -> None:
        """Blocks until all runs have ended. Errors: JobFailedError if all failed."""
        told: Dict[str, str] = {}
        while True:
            ended = self._process is None or self._process.poll() is not None
            for run in self._runs():
                if told.get(run["run"]) != run["state"] and run["state"] != "waiting":
                    told[run["run"]] = run["state"]
                    print(self._line_of(run), flush=True)
            if ended:
                break
            time.sleep(POLL_SECONDS)
        runs = self._runs()
        if all(run["state"] == "failed" for run in runs):
            raise JobFailedError(f"all runs of {self._name()} failed: {runs[0]['reason']}", self._job_of(runs[0]["run"]))

    def best_training_job(self) -> str:
        """Returns the name of the best run among those that came to their end; if none did, among those with a value.

        Errors: InvalidArgumentError if no run has a value."""
        best = next((run for run in self._runs() if run["best"]), None)
        if best is None:
            raise InvalidArgumentError(f"no run of {self._name()} has a value of {self._metric}")
        return str(best["run"])

    def best_job(self) -> TrainingJob:
        """Returns the best run."""
        return self._job_of(self.best_training_job())

    def deploy(self, initial_instance_count: int = 1, instance_type: Optional[str] = None, **options: Any) -> Endpoint:
        """Serves the model of the best run, as Estimator.deploy does."""
        model = Model(str(self.best_job().model_data), connection=self._program.connection, program=self._program.path)
        return model.deploy(initial_instance_count, instance_type, **options)

    def analytics(self) -> "TunerAnalytics":
        """Returns the runs so far as a table."""
        return TunerAnalytics(self)

    def describe(self) -> Dict[str, Any]:
        """Returns the state in the words of SageMaker's DescribeHyperParameterTuningJob."""
        runs = self._runs()
        words = [STATUSES[run["state"]] for run in runs]
        running = self._process is not None and self._process.poll() is None
        described: Dict[str, Any] = {
            "HyperParameterTuningJobName": self._name(),
            "HyperParameterTuningJobStatus": "InProgress"
            if running
            else "Failed"
            if all(word == "Failed" for word in words)
            else "Stopped"
            if any(run["state"] in ("waiting", "running", "interrupted") for run in runs)
            else "Completed",
            "TrainingJobStatusCounters": {
                "Completed": words.count("Completed"),
                "InProgress": words.count("InProgress"),
                "NonRetryableError": words.count("Failed"),
                "Stopped": words.count("Stopped"),
            },
        }
        best = next((run for run in runs if run["best"]), None)
        if best is not None:
            described["BestTrainingJob"] = {
                "TrainingJobName": best["run"],
                "TunedHyperParameters": self.tuned(best),
                "FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": self._metric, "Value": best["value"]},
            }
        return described

    def stop_tuning_job(self) -> None:
        """Lets the runs save and leave, and waits until they have."""
        self._program.output("job", "sweep", "stop", self._name())
        if self._process is not None:
            self._process.wait()

    def tuned(self, run: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the values of the hyperparameters of a run, by the names in ``hyperparameter_ranges``."""
        values: Dict[str, Any] = {}
        for name, key in self._keys.items():
            text = run["values"][key]
            try:
                values[name] = json.loads(text)
            except ValueError:  # a number in a form that JSON does not have, or a text without quotes
                values[name] = float(text) if _is_number(text) else text
        return values

    def _arguments(self, name: str) -> List[str]:
        words = ["--name", name, "--metric", self._metric, "--mode", self._mode, "--at-once", str(self._parallel)]
        for hyperparameter, values in self._ranges.items():
            words += ["--vary", f"{self._keys[hyperparameter]}={values.values()}"]
        if self._jobs is not None:
            words += ["--random", str(self._jobs), "--seed", str(self._seed)]
        if self._stops != "none":
            words += ["--early-stop", self._stops]
            words += ["--min-steps", str(self._min_steps)] if self._min_steps else []
        return words

    def _name(self) -> str:
        if self.latest_tuning_job is None:
            raise InvalidArgumentError("there is no tuning job yet: call fit()")
        return self.latest_tuning_job

    def _runs(self) -> List[Dict[str, Any]]:
        lines = self._program.output("--json", "job", "sweep", "status", self._name()).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _has_started(self, name: str) -> bool:
        try:
            self._program.output("--json", "job", "sweep", "status", name)
        except ProgramError as error:
            if error.status != 4:  # not found
                raise
            return False
        return True

    def _job_of(self, run: str) -> TrainingJob:
        definitions = self._definitions or self.estimator.metric_definitions
        model = f"{self._model_root}/{run}" if self._model_root else None
        return TrainingJob(run, program=self._program, metric_definitions=definitions, model_data=model)

    def _line_of(self, run: Dict[str, Any]) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.tuned(run).items())
        value = f", {self._metric} {run['value']:.6g}" if "value" in run else ""
        why = f" ({run['reason']})" if run["reason"] else ""
        return f"{run['run']}: {run['state']}{why}{value}: {values}"


class TunerAnalytics:
    """The runs of a tuner. ``dataframe()`` has SageMaker's columns."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each run that has begun."""
        return [self._row(run) for run in self._tuner._runs() if run["state"] != "waiting"]

    def dataframe(self) -> Any:
        """Returns the rows as a pandas DataFrame, or without pandas as a dict of lists."""
        return as_table(self.rows())

    def _row(self, run: Dict[str, Any]) -> Dict[str, Any]:
        row = self._tuner.tuned(run)
        row.update(
            TrainingJobName=run["run"],
            TrainingJobStatus=STATUSES[run["state"]],
            FinalObjectiveValue=run.get("value"),
        )
        try:
            status = self._tuner._job_of(run["run"]).status()
            began, ended = (datetime.fromisoformat(status[key].replace("Z", "+00:00")) for key in ("started", "updated"))
        except (ProgramError, KeyError, ValueError):  # the run has not told of itself yet
            return row
        row.update(
            TrainingStartTime=began,
            TrainingEndTime=None if row["TrainingJobStatus"] == "InProgress" else ended,
            TrainingElapsedTimeSeconds=(ended - began).total_seconds(),
        )
        return row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _key_of(name: str, is_script: bool) -> str:
    """Returns the key of the job file that a hyperparameter is."""
    if "." in name:
        return name
    if is_script:
        if not name.replace("_", "a").isalnum() or not name.isascii():
            raise InvalidArgumentError(f"hyperparameter_ranges: {name!r}: a name has letters, digits and _")
        return f"run.env.SM_HP_{name.upper()}"
    if name not in DIRECT:
        raise InvalidArgumentError(
            f"hyperparameter_ranges: {name}: it is not one key of the job file; write such a key, or one of "
            + ", ".join(sorted(DIRECT))
        )
    return DIRECT[name][0]
