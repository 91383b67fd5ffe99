"""SageMaker's Estimator on Millrace: the same calls, on this machine, on Slurm, or on what else `run.launcher` names.

    estimator = millrace.Estimator(job="job.yaml", instance_count=2, hyperparameters={"learning_rate": 3e-4})
    estimator.fit({"train": "s3://corpus/wiki/*.jsonl"})
    estimator.metrics()

It makes a job file, and runs that with the program ``millrace``.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional, Sequence, Union

from .distribution import Distribution
from .endpoint import Endpoint, serve
from .errors import InvalidArgumentError, UnsupportedError
from .hyperparameters import Keys
from .job import Job
from .programs import Program, ProgramError, clean_message
from .script import Script
from .session import Options
from .training_input import CHANNELS, CONTENT_TYPES, TrainingInput, manifest_urls
from .training_job import POLL_SECONDS, TrainingJob

__all__ = ["Estimator", "Model", "TrainingCompilerConfig", "default_bucket"]

#: GPUs of AWS's machines: a `distribution` starts a process for each. https://aws.amazon.com/ec2/instance-types/
GPUS = {
    "p3.2xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8, "p3dn.24xlarge": 8,
    "p4d.24xlarge": 8, "p4de.24xlarge": 8, "p5.4xlarge": 1, "p5.48xlarge": 8, "p5e.48xlarge": 8, "p5en.48xlarge": 8,
    "g4dn.xlarge": 1, "g4dn.2xlarge": 1, "g4dn.4xlarge": 1, "g4dn.8xlarge": 1, "g4dn.12xlarge": 4, "g4dn.16xlarge": 1,
    "g5.xlarge": 1, "g5.2xlarge": 1, "g5.4xlarge": 1, "g5.8xlarge": 1, "g5.12xlarge": 4, "g5.16xlarge": 1,
    "g5.24xlarge": 4, "g5.48xlarge": 8,
    "g6.xlarge": 1, "g6.2xlarge": 1, "g6.4xlarge": 1, "g6.8xlarge": 1, "g6.12xlarge": 4, "g6.16xlarge": 1,
    "g6.24xlarge": 4, "g6.48xlarge": 8,
}  # fmt: skip

#: Launchers whose supervisor runs on this machine, as long as the job does.
SUPERVISED_HERE = ("local", "ssh")

#: Launchers whose ranks are in containers.
IN_PODS = ("kubernetes", "jobset", "mpijob")

#: Arguments of SageMaker's estimators that change nothing here.
IGNORED_ARGUMENTS = {
    "checkpoint_local_path", "container_log_level", "enable_sagemaker_metrics", "framework_version", "image_uri",
    "keep_alive_period_in_seconds", "py_version", "pytorch_version", "role", "sagemaker_session", "tags",
    "transformers_version", "volume_size",
}  # fmt: skip

#: Arguments that may be given if they switch something off that is not here, with the values that do.
OFF_ARGUMENTS: Dict[str, Sequence[Any]] = {
    "debugger_hook_config": (None, False),
    "disable_profiler": (None, True),
    "enable_network_isolation": (None, False),
    "encrypt_inter_container_traffic": (None, False),
    "profiler_config": (None,),
    "rules": (None, []),
}

#: How the names of job files end; other entry points are scripts.
_JOB_FILES = (".yaml", ".yml", ".json")

#: The most bytes of a manifest.
_MAX_MANIFEST = 64 << 20


@dataclass(frozen=True)
class TrainingCompilerConfig:
    """``compiler_config``: matrix products by the library that is fastest for each shape (`train.compile: on`)."""

    enabled: bool = True
    debug: bool = False


def default_bucket(program: Optional[Program] = None) -> str:
    """Returns the name of this user's default bucket at the store, and makes it if it does not exist.

    The name is $MILLRACE_DEFAULT_BUCKET, else millrace-REGION-RANDOM. What was drawn at random is kept in the state folder.
    """
    program = program or Program()
    named = os.environ.get("MILLRACE_DEFAULT_BUCKET")
    bucket = named or _kept_bucket(program)
    try:
        program.output("mb", f"s3://{bucket}")
    except ProgramError as error:
        if "BucketAlreadyOwnedByYou" not in str(error):
            raise
    return bucket


def _state_folder() -> str:
    """The same folder that the program has."""
    folder = os.environ.get("MILLRACE_STATE_DIR")
    if folder:
        return folder
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "millrace")


def _variable(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _kept_bucket(program: Program) -> str:
    connection = program.connection or Options()
    region = connection.region or _variable("MILLRACE_REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = connection.endpoint_url or _variable("MILLRACE_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    profile = connection.profile or _variable("MILLRACE_PROFILE", "AWS_PROFILE")
    store = f"{endpoint} {region} {profile}"
    path = os.path.join(_state_folder(), "default-buckets.json")
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
    except FileNotFoundError:
        kept = {}
    if store not in kept:
        kept[store] = f"millrace-{re.sub('[^a-z0-9-]', '', region.lower())}-{secrets.token_hex(6)}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        scratch = f"{path}.{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(kept, file, indent=1)
        os.replace(scratch, path)
    return kept[store]


class Estimator:
    """Trains as a job file says, with SageMaker's arguments on top of it. docs/guide/estimator.md has a table of all of them.

    The job file is ``job``, a path or a dict; or ``entry_point``, if its name ends in .yaml, below ``source_dir``. Another
    ``entry_point`` is a script, which the job runs in place of Millrace's trainer, as SageMaker's script mode does.
    ``launcher`` is the word of `run.launcher`; without it, ``instance_type`` says: "slurm" is Slurm, "local" and AWS's names
    are this machine, where each instance is as many processes.
    """

    def __init__(
        self,
        entry_point: Optional[str] = None,
        *,
        job: Union[str, os.PathLike, Job, Dict[str, Any], None] = None,
        source_dir: Optional[str] = None,
        dependencies: Optional[Sequence[str]] = None,
        hyperparameters: Optional[Dict[str, Any]] = None,
        instance_count: int = 1,
        instance_type: str = "local",
        processes_per_instance: Optional[int] = None,
        launcher: Optional[str] = None,
        distribution: Optional[Dict[str, Any]] = None,
        input_mode: str = "File",
        metric_definitions: Optional[Sequence[Dict[str, str]]] = None,
        use_spot_instances: bool = False,
        max_run: Optional[int] = None,
        max_wait: Optional[int] = None,
        max_retry_attempts: Optional[int] = None,
        checkpoint_s3_uri: Optional[str] = None,
        output_path: Optional[str] = None,
        base_job_name: Optional[str] = None,
        compiler_config: Optional[TrainingCompilerConfig] = None,
        environment: Optional[Dict[str, str]] = None,
        connection: Optional[Options] = None,
        program: Optional[str] = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        is_script = job is None and entry_point is not None and not entry_point.endswith(_JOB_FILES)
        self._job = None if is_script else _job_of(entry_point, job, source_dir)
        self._source_dir = source_dir
        if dependencies and not is_script:
            raise UnsupportedError(
                "dependencies: leave it out; a job file runs Millrace's own trainer, which imports no code of yours"
            )
        if input_mode not in ("File", "FastFile", "Pipe"):
            raise InvalidArgumentError(
                f"input_mode={input_mode!r}: it may be File, FastFile or Pipe; data are streamed with all of them"
            )
        if instance_count < 1:
            raise InvalidArgumentError(f"instance_count={instance_count}: must be at least 1")
        for entry in metric_definitions or ():
            if set(entry) != {"Name", "Regex"}:
                raise InvalidArgumentError(f"metric_definitions: {entry!r} should have Name and Regex")
            re.compile(entry["Regex"])
        if use_spot_instances and (max_run is None or max_wait is None or max_wait < max_run):
            raise InvalidArgumentError("use_spot_instances: give max_run, and a max_wait of at least that")
        if max_wait is not None and not use_spot_instances:
            raise InvalidArgumentError("max_wait: it is for use_spot_instances=True")
        if max_run is not None and max_run < 1:
            raise InvalidArgumentError(f"max_run={max_run}: must be at least 1 second")

        self._launcher = launcher or _launcher_of(instance_type)
        self._instances = instance_count
        shape = Distribution(distribution or {})
        gpus = GPUS.get(instance_type[len("ml.") :], 0) if instance_type.startswith("ml.") else 0
        self._processes = (
            processes_per_instance
            or shape.processes
            or (max(1, gpus) if shape.enabled and instance_type.startswith("ml.") else None)
        )
        self._parallel = shape.parallel
        self._script: Optional[Script] = None
        if is_script:
            if self._parallel or compiler_config is not None:
                raise UnsupportedError(
                    "modelparallel and compiler_config are for Millrace's own trainer; a script does its own"
                )
            python = "python3" if self._launcher in IN_PODS else sys.executable  # the image's
            self._script = Script(str(entry_point), source_dir, hyperparameters or {}, dependencies or (), gpus, python)
        self._keys = Keys({} if is_script else hyperparameters or {}, source_dir)
        self._definitions = list(metric_definitions or ())
        self._max_run, self._retries = max_run, max_retry_attempts
        self._checkpoint_url, self._output_path = checkpoint_s3_uri, output_path and output_path.rstrip("/")
        self._base_name, self._suffix_room = base_job_name, 0
        self._packed: "Optional[tempfile.TemporaryDirectory[str]]" = None
        self._compiler = compiler_config
        self._image = others.get("image_uri")
        self._checkpoint_path = others.get("checkpoint_local_path")
        variables = {**shape.environment, **(environment or {})}
        # These launchers hand this process's variables on; others get them with the job file.
        inherits = self._launcher in ("local", "slurm")
        self._rank_variables = {} if inherits else variables
        self._program = Program(program, connection, variables if inherits else {})
        #: The TrainingJob of the last `fit`.
        self.latest_training_job: Optional[TrainingJob] = None

    @property
    def model_data(self) -> Optional[str]:
        """The URL of the checkpoints of the last `fit`."""
        return self._latest().model_data

    def render(self, inputs: Any = None, job_name: Optional[str] = None) -> str:
        """Returns the job file that `fit` would run, with every default filled in. Starts nothing. May make the default bucket."""
        return self._rendered(inputs, job_name)[0]

    @property
    def program(self) -> Program:
        """The program that runs the jobs."""
        return self._program

    @property
    def launcher(self) -> str:
        """The word of `run.launcher`."""
        return self._launcher

    @property
    def is_script(self) -> bool:
        """Whether jobs run a script instead of Millrace's trainer."""
        return self._script is not None

    @property
    def metric_definitions(self) -> List[Dict[str, str]]:
        """As they were given."""
        return list(self._definitions)

    def render_for_sweep(
        self,
        inputs: Any,
        tuned: Sequence[str],
        *,
        job_name: Optional[str] = None,
        base_name: Optional[str] = None,
        definitions: Sequence[Dict[str, str]] = (),
    ) -> "tuple[str, str, str]":
        """Returns the job file whose values `millrace job sweep` varies, the sweep's name, and the URL below which each run
        has its model. ``tuned``: hyperparameters whose values come from the sweep."""
        varied = copy.copy(self)
        varied._suffix_room = len("-10000")
        varied._base_name = base_name or self._base_name
        varied._definitions = list(definitions or self._definitions)
        if self._script is not None:
            varied._script = self._script.with_tuned(tuned)
        rendered = varied._rendered(inputs, job_name)
        self._packed = varied._packed  # until the sweep has packed it
        return rendered

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: Any = "All",
        job_name: Optional[str] = None,
        experiment_config: Any = None,
    ) -> None:
        """Starts a job, and with ``wait`` blocks until it has ended, printing its output unless ``logs`` is False or "None".

        ``inputs``: a URL, a TrainingInput, or a dict of these by channel: train, validation. Without, the job file's.
        Returns when the data, the tokenizer and the buckets have been checked and the job has begun, or waits in a queue.
        Errors: ProgramError if a check fails; nothing has been started then. JobFailedError if the job fails meanwhile.
        """
        if experiment_config is not None:
            raise UnsupportedError("experiment_config: leave it out; there are no experiments here")
        text, name, model_data = self._rendered(inputs, job_name)
        process = self._start(text, name)
        self.latest_training_job = TrainingJob(
            name, program=self._program, metric_definitions=self._definitions, model_data=model_data, process=process
        )
        if wait:
            self.latest_training_job.wait(logs)

    def logs(self, **options: Any) -> str:
        """``latest_training_job.logs()``."""
        return self._latest().logs(**options)

    def metrics(self) -> Any:
        """``latest_training_job.metrics()``."""
        return self._latest().metrics()

    def stop(self) -> None:
        """``latest_training_job.stop()``."""
        self._latest().stop()

    def deploy(
        self,
        initial_instance_count: int = 1,
        instance_type: Optional[str] = None,
        *,
        endpoint_name: Optional[str] = None,
        precision: str = "f32",
    ) -> Endpoint:
        """Serves the newest checkpoint of the last `fit` with `millrace serve`, on this machine.

        Errors: UnsupportedError for more than one instance; EndpointError if the server does not start.
        """
        _check_one(initial_instance_count)
        job = self._latest()
        if job.model_data is None:
            raise InvalidArgumentError(f"job {job.name} has no checkpoint.url, so there is no model to serve")
        return serve(
            self._program, job.model_data, name=endpoint_name or job.name, arguments=("--precision", precision)
        )

    def _latest(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise InvalidArgumentError("there is no training job yet: call fit()")
        return self.latest_training_job

    def _rendered(self, inputs: Any, job_name: Optional[str]) -> "tuple[str, str, str]":
        """Returns the whole job file, the job's name, and where its checkpoints go."""
        if self._script is not None:
            return self._rendered_script(self._script, inputs, job_name)
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(self._job, dict):
                path = os.path.join(folder, "job.yaml")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"name": "millrace-training", **self._job}, file)  # JSON is YAML
            else:
                path = str(self._job)
            keys = self._job_keys()
            base = self._read(
                path, {**keys, **_source_keys(self._channel_sources(inputs, None)), **self._any_batch(keys)}
            )
            name = job_name or _job_name(self._base_name or base["name"], self._suffix_room)
            keys["name"] = name
            keys["checkpoint.url"] = self._checkpoints(name, base)
            sources = self._channel_sources(inputs, name)
            if "eval" in sources and base.get("eval.every_steps") == "0":
                raise InvalidArgumentError(
                    "a channel for evaluation needs eval.every_steps: give eval_steps as a hyperparameter"
                )
            keys.update(_source_keys(sources))
            keys.update(self._batch_keys(base))
            return self._render(path, keys), name, keys["checkpoint.url"]

    def _rendered_script(self, script: Script, inputs: Any, job_name: Optional[str]) -> "tuple[str, str, str]":
        """Returns the whole job file, the job's name, and where the script's model goes."""
        base = os.path.splitext(script.name)[0]
        base = self._base_name or re.sub(r"[^A-Za-z0-9-]+", "-", base).strip("-") or "script"
        name = job_name or _job_name(base, self._suffix_room)
        output = f"{self._output()}/{name}"
        packed = None
        if self._launcher != "local":
            self._packed = tempfile.TemporaryDirectory(prefix="millrace-code-")  # until the job has begun
            packed = script.pack(self._packed.name)
        job = script.job(name, inputs, output, self._checkpoint_url, self._checkpoint_path, packed)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.yaml")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(job, file)  # JSON is YAML
            model = script.model_url(output, self._checkpoint_url)
            return self._render(path, {**self._run_keys(), **script.keys}), name, model

    def _job_keys(self) -> Dict[str, Any]:
        keys: Dict[str, Any] = dict(self._keys.keys)
        if "train.steps" in keys and "train.epochs" in keys:
            raise InvalidArgumentError("hyperparameters: give steps (max_steps) or epochs (num_train_epochs), not both")
        for pair in (
            ("train.steps", "train.epochs"),
            ("train.schedule.warmup_steps", "train.schedule.warmup_proportion"),
        ):
            # One takes the place of the other in the job file.
            given = [key for key in pair if key in keys]
            if len(given) == 1:
                keys[pair[1] if given[0] == pair[0] else pair[0]] = None
        keys.update({f"train.parallel.{word}": value for word, value in self._parallel.items()})
        if "train.parallel.microbatches" in keys:
            keys["train.micro_batch"] = None  # it follows from the number of micro-batches
        if self._compiler is not None:
            keys["train.compile"] = "on" if self._compiler.enabled else "auto"
        keys.update(self._run_keys())
        return keys

    def _run_keys(self) -> Dict[str, Any]:
        """Returns what the arguments say of `run` and `log`."""
        keys: Dict[str, Any] = {}
        if self._retries is not None:
            keys["run.max_restarts"] = self._retries
        if self._definitions:
            keys["log.metric_definitions"] = self._definitions
        keys.update({f"run.env.{name}": value for name, value in self._rank_variables.items()})
        keys["run.launcher"] = self._launcher
        if self._launcher == "local":
            keys["run.nodes"] = 1
            if self._processes is not None or self._instances > 1:
                keys["run.processes_per_node"] = self._instances * (self._processes or 1)
        else:
            keys["run.nodes"] = self._instances
            if self._processes is not None:
                keys["run.processes_per_node"] = self._processes
            if self._max_run is not None and self._launcher not in SUPERVISED_HERE:
                if self._launcher != "slurm":
                    raise UnsupportedError(f"max_run: the launcher {self._launcher} has no such limit; leave it out")
                keys["run.time"] = f"{self._max_run}s"
            if self._image is not None and self._launcher not in ("slurm", *SUPERVISED_HERE):
                keys["run.image"] = self._image
        return keys

    def _any_batch(self, keys: Dict[str, Any]) -> Dict[str, Any]:
        """Returns a global batch that every layout of the ranks can divide, to read the layout with."""
        if self._keys.per_process is None:
            return {}
        ranks = keys.get("run.nodes", 1) * keys.get("run.processes_per_node", 1)
        return {
            "train.global_batch": ranks * keys.get("train.parallel.microbatches", 1) * 256,
            "train.micro_batch": None,
        }

    def _batch_keys(self, base: Dict[str, str]) -> Dict[str, int]:
        ranks = int(base["run.nodes"]) * int(base["run.processes_per_node"])
        if self._keys.per_process is not None and base.get("train.parallel.layout") == "auto":
            raise InvalidArgumentError(
                "batch sizes of a process need a layout: write train.global_batch with parallel.layout: auto"
            )
        share = int(base.get("train.parallel.tensor", 1)) * int(base.get("train.parallel.pipeline", 1))
        return self._keys.batch(max(1, ranks // share), "train.parallel.microbatches" in self._job_keys())

    def _checkpoints(self, name: str, base: Dict[str, str]) -> str:
        if self._checkpoint_url is not None:
            return self._checkpoint_url
        if self._output_path is None and base.get("checkpoint.url"):
            return base["checkpoint.url"]
        return f"{self._output()}/{name}"

    def _output(self) -> str:
        """Returns where files of jobs go. Makes the default bucket if none is named."""
        if self._output_path is None:
            self._output_path = f"s3://{default_bucket(self._program)}"
        return self._output_path

    def _channel_sources(self, inputs: Any, name: Optional[str]) -> Dict[str, List[Dict[str, Any]]]:
        """Returns the sources of `data` and `eval`. Lists of manifests are written for a job's ``name`` only."""
        if inputs is None:
            return {}
        channels = inputs if isinstance(inputs, dict) else {"training": inputs}
        sources: Dict[str, List[Dict[str, Any]]] = {}
        for channel, given in channels.items():
            if channel not in CHANNELS:
                near = difflib.get_close_matches(channel, CHANNELS, 1)
                raise InvalidArgumentError(
                    f'channel "{channel}": a job reads {", ".join(CHANNELS)}'
                    + (f"; did you mean {near[0]}?" if near else "")
                )
            wanted = given if isinstance(given, TrainingInput) else TrainingInput(str(given))
            wanted.check(channel)
            part = CHANNELS[channel]
            if part in sources:
                raise InvalidArgumentError(f'channel "{channel}": another channel is for {part}.sources already')
            source: Dict[str, Any] = {"url": wanted.s3_data}
            if wanted.s3_data_type == "ManifestFile" and name is not None:
                source["url"] = "@" + self._write_list(wanted.s3_data, f"{self._output()}/{name}-input/{channel}.txt")
            if wanted.content_type is not None:
                source["format"] = CONTENT_TYPES[wanted.content_type]
            sources[part] = [source]
        return sources

    def _write_list(self, manifest: str, url: str) -> str:
        """Writes the objects of a manifest, one a line, as a list that a source can name."""
        from .files import ObjectReader, ObjectWriter

        with ObjectReader(manifest, connection=self._program.connection) as reader:
            if reader.size > _MAX_MANIFEST:
                raise InvalidArgumentError(
                    f"{manifest} has {reader.size} bytes; a manifest has at most {_MAX_MANIFEST}"
                )
            content = reader.readall()
        names = manifest_urls(content, manifest)
        with ObjectWriter(url, connection=self._program.connection) as writer:
            writer.write("".join(name + "\n" for name in names).encode())
        return url

    def _render(self, path: str, keys: Dict[str, Any]) -> str:
        sets = [
            word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value, ensure_ascii=False)}")
        ]
        return self._program.output("job", "render", path, *sets)

    def _read(self, path: str, keys: Dict[str, Any]) -> Dict[str, str]:
        return scalars(self._render(path, keys))

    def _start(self, text: str, name: str) -> "Optional[subprocess.Popen[bytes]]":
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            if self._launcher not in SUPERVISED_HERE:
                self._program.output("--json", "job", "submit", path)
                return None
            before = self._started(name)
            command = self._program.command("--json", "job", "run", path)
            if self._max_run is not None:
                # coreutils' timeout sends SIGTERM, so the ranks save and leave. It outlives this process, as the job does.
                command = ["timeout", "--foreground", "--signal=TERM", f"{self._max_run}s", *command]
            with open(os.path.join(folder, "errors"), "w+b") as errors:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=self._program.variables(),
                    start_new_session=True,
                )
                while self._started(name) == before:
                    if process.poll() is not None and self._started(name) == before:
                        errors.seek(0)
                        raise ProgramError(clean_message(errors.read().decode(errors="replace")), process.returncode)
                    time.sleep(POLL_SECONDS)
            return process

    def _started(self, name: str) -> Optional[str]:
        """Returns when the latest run of a job began; None if there is none."""
        try:
            return self._program.json("job", "status", name).get("started")
        except ProgramError as error:
            if error.status != 4:  # not found
                raise
            return None


class Model:
    """A model at a URL, as SageMaker's HuggingFaceModel: a run's checkpoints, an imported checkpoint, a folder of Hugging
    Face's, a GGUF file or SageMaker's model.tar.gz. Arguments of SageMaker that change nothing are accepted, as those of Estimator are."""

    def __init__(
        self, model_data: str, *, connection: Optional[Options] = None, program: Optional[str] = None, **others: Any
    ) -> None:
        _check_others(others)
        self.model_data = model_data
        self._program = Program(program, connection)

    def deploy(
        self,
        initial_instance_count: int = 1,
        instance_type: Optional[str] = None,
        *,
        endpoint_name: Optional[str] = None,
        precision: str = "f32",
    ) -> Endpoint:
        """Serves the model with `millrace serve`, on this machine. Errors: as of Estimator.deploy."""
        _check_one(initial_instance_count)
        name = endpoint_name or self.model_data.removesuffix("/model.tar.gz").rstrip("/").rsplit("/", 1)[-1]
        return serve(self._program, self.model_data, name=name, arguments=("--precision", precision))


def _check_one(instances: int) -> None:
    if instances != 1:
        raise UnsupportedError(
            f"initial_instance_count={instances}: one server is started; start several with `millrace serve` behind a balancer"
        )


def _check_others(others: Dict[str, Any]) -> None:
    for name, value in others.items():
        if name in IGNORED_ARGUMENTS:
            continue
        if name in OFF_ARGUMENTS:
            if not any(value is allowed or value == allowed for allowed in OFF_ARGUMENTS[name]):
                raise UnsupportedError(f"{name}={value!r} is not supported; leave it out")
            continue
        near = difflib.get_close_matches(name, [*_parameters(), *IGNORED_ARGUMENTS, *OFF_ARGUMENTS], 1)
        raise TypeError(
            f"{name}: an Estimator does not have this argument" + (f"; did you mean {near[0]}?" if near else "")
        )


def _parameters() -> List[str]:
    import inspect

    return [name for name in inspect.signature(Estimator.__init__).parameters if name not in ("self", "others")]


def _job_of(entry_point: Optional[str], job: Any, source_dir: Optional[str]) -> Any:
    if job is not None and entry_point is not None:
        raise InvalidArgumentError("give entry_point or job, not both")
    if job is not None:
        return job
    if entry_point is None:
        raise InvalidArgumentError("give job, a job file or a dict of its keys, or entry_point, a script")
    return os.path.join(source_dir or "", entry_point)


def _launcher_of(instance_type: str) -> str:
    if instance_type == "slurm":
        return "slurm"
    if instance_type in ("local", "local_gpu") or instance_type.startswith("ml."):
        return "local"
    raise InvalidArgumentError(
        f'instance_type={instance_type!r}: it is "local", "slurm" or a name of AWS such as ml.p4d.24xlarge; launcher= names another launcher'
    )


def _source_keys(sources: Dict[str, List[Dict[str, Any]]]) -> Dict[str, Any]:
    return {f"{part}.sources": of_part for part, of_part in sources.items()}


def _job_name(base: str, room: int = 0) -> str:
    """Returns a name as SageMaker makes it, of at most 63 characters: base-2026-11-25-17-20-14-716. ``room``: of these, for
    what is appended to it."""
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d-%H-%M-%S-%f")[:-3]
    return f"{base[: 63 - room - len(stamp) - 1]}-{stamp}"


def scalars(rendered: str) -> Dict[str, str]:
    """Returns the scalars of a rendered job file by their paths. Leaves lists of maps out."""
    found: Dict[str, str] = {}
    path: List[str] = []
    for line in rendered.splitlines():
        stripped = line.lstrip(" ")
        depth = (len(line) - len(stripped)) // 2
        key, colon, value = stripped.partition(":")
        if not colon or stripped.startswith("- ") or depth > len(path):
            continue
        path = [*path[:depth], key]
        value = value.strip()
        if value:
            found[".".join(path)] = str(json.loads(value)) if value.startswith('"') else value
    return found
