"""Training scripts of an Estimator, as SageMaker's script mode runs them.

The script gets the hyperparameters as arguments, and in ``SM_…`` variables the folders of its data and of its model.
Channels and the model are buckets that the job mounts.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional, Sequence

from .errors import InvalidArgumentError, UnsupportedError
from .training_input import TrainingInput

#: Hyperparameters that are keys of the job file rather than arguments of the script.
_JOB_KEYS = ("run.", "log.", "cost.")

_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Script:
    """A script, the folder of its code and what it is started with.

    ``dependencies``: files and folders that it imports. ``gpus``: of one machine. ``python``: runs it.
    """

    def __init__(
        self,
        entry_point: str,
        source_dir: Optional[str],
        hyperparameters: Dict[str, Any],
        dependencies: Sequence[str] = (),
        gpus: int = 0,
        python: str = sys.executable,
    ) -> None:
        if source_dir and "://" in source_dir:
            raise UnsupportedError(f"source_dir={source_dir!r}: name a folder of this machine; archives are not unpacked")
        path = os.path.join(source_dir or "", entry_point)
        if not os.path.isfile(path):
            raise InvalidArgumentError(f"entry_point={entry_point!r}: there is no file {path}")
        for dependency in dependencies:
            if not os.path.exists(dependency):
                raise InvalidArgumentError(f"dependencies: there is no {dependency}")
        self._folder = os.path.abspath(source_dir or os.path.dirname(path))
        #: Its path below the folder of its code.
        self.name = os.path.relpath(os.path.abspath(path), self._folder)
        self._alone = source_dir is None
        self._dependencies = [os.path.abspath(each) for each in dependencies]
        self._gpus = gpus
        self._python = python
        #: Hyperparameters whose values are in SM_HP_ variables that others set.
        self._tuned: List[str] = []
        self._values = {k: v for k, v in hyperparameters.items() if not k.startswith(_JOB_KEYS)}
        #: Keys of the job file.
        self.keys: Dict[str, Any] = {k: v for k, v in hyperparameters.items() if k.startswith(_JOB_KEYS)}

    def pack(self, folder: str) -> str:
        """Returns the folder of the code that travels to other machines. With dependencies, or without a source_dir, copies
        the code into ``folder`` first, with the dependencies beside it. Errors: InvalidArgumentError if two have one name."""
        if not self._alone and not self._dependencies:
            return self._folder
        if self._alone:
            shutil.copy2(os.path.join(self._folder, self.name), folder)
        else:
            shutil.copytree(self._folder, folder, symlinks=True, dirs_exist_ok=True)
        for dependency in self._dependencies:
            copied = os.path.join(folder, os.path.basename(dependency))
            if os.path.lexists(copied):
                raise InvalidArgumentError(
                    f"dependencies: {dependency} would replace {os.path.basename(dependency)} of the code; rename one"
                )
            if os.path.isdir(dependency):
                shutil.copytree(dependency, copied, symlinks=True)
            else:
                shutil.copy2(dependency, copied)
        return folder

    def with_tuned(self, names: Sequence[str]) -> "Script":
        """Returns the script as a sweep runs it: the values of these hyperparameters come from SM_HP_ variables, and each
        run has one folder, for its model and its checkpoints."""
        script = copy.copy(self)
        script._tuned = sorted(name for name in names if not name.startswith(_JOB_KEYS))
        script._values = {name: value for name, value in self._values.items() if name not in names}
        return script

    def model_url(self, output: str, checkpoints: Optional[str]) -> str:
        """Returns where the model goes; of a sweep, below which folder. The arguments are those of ``job``."""
        return (checkpoints or output).rstrip("/") if self._tuned else f"{output}/model/"

    def command(self, script: str) -> List[str]:
        """Returns the words that run the script at a path."""
        words = [*self._interpreter(), script, *self.arguments()]
        if not self._tuned:
            return words
        tuned = " ".join(f'{"--" if len(name) > 1 else "-"}{name} "$SM_HP_{name.upper()}"' for name in self._tuned)
        return ["/bin/sh", "-c", f'exec "$@" {tuned}', "sh", *words]

    def arguments(self) -> List[str]:
        """Returns the hyperparameters as words: --lr 0.1 --name abc."""
        words = []
        for name, value in sorted(self._values.items()):
            words += [f"--{name}" if len(name) > 1 else f"-{name}", "" if value is None else str(value)]
        return words

    def job(
        self,
        name: str,
        inputs: Any,
        output: str,
        checkpoints: Optional[str],
        path: Optional[str],
        packed: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Returns the job file of a run. ``output``: URL of the run's folder. ``checkpoints``: a URL, mounted at ``path``.
        ``packed``: the folder of the code that travels, for machines that do not have it: what ``pack`` returned."""
        travels = packed is not None
        base = os.path.join(tempfile.gettempdir(), f"millrace-{name}")
        folders, mounts = {}, {}
        for channel, given in _channels(inputs).items():
            if given.s3_data_type != "S3Prefix":
                raise UnsupportedError(f'channel "{channel}": a script gets a folder; name one in place of a manifest')
            url = given.s3_data
            if re.search(r"[*?\[{]", url):
                raise InvalidArgumentError(f'channel "{channel}": a script gets a folder; {url} is a pattern')
            if "://" in url:
                folders[channel] = os.path.join(base, "input", channel)
                mounts[url if url.endswith("/") else url + "/"] = folders[channel] + ":ro"
            else:
                folders[channel] = os.path.abspath(url)
        if len(mounts) != sum("://" in given.s3_data for given in _channels(inputs).values()):
            raise InvalidArgumentError("two channels name one folder: give it to one of them")
        model, data = os.path.join(base, "model"), os.path.join(base, "output")
        if self._tuned:
            # The sweep gives each run a checkpoint.url of its own.
            checkpoints, path = checkpoints or output, path or model
            model = data = path
        else:
            mounts[f"{output}/model/"] = model
            mounts[f"{output}/output/"] = data
        variables = self._variables(folders, travels)
        variables.update(SM_MODEL_DIR=model, SM_OUTPUT_DATA_DIR=data)
        script = self.name if travels else os.path.join(self._folder, self.name)
        run: Dict[str, Any] = {
            "command": self.command(script),
            "source" if travels else "directory": packed or self._folder,
            "env": {key: _text(value) for key, value in variables.items()},
            "mounts": mounts,
        }
        saved = {"url": checkpoints, **({"path": path} if path else {})} if checkpoints else {}
        log = {"log": {"url": f"{output}/log"}} if travels else {}
        return {"name": name, "run": run, **log, **({"checkpoint": saved} if saved else {})}

    def _interpreter(self) -> List[str]:
        return ["bash"] if self.name.endswith(".sh") else [self._python]

    def _variables(self, folders: Dict[str, str], travels: bool) -> Dict[str, Any]:
        path = os.environ.get("PYTHONPATH")
        # Code that travels runs where it was unpacked.
        imports = ["."] if travels else [self._folder, *map(os.path.dirname, self._dependencies)]
        variables: Dict[str, Any] = {
            "PYTHONPATH": os.pathsep.join([*dict.fromkeys(imports), *([path] if path else [])]),
            "SM_CHANNELS": sorted(folders),
            "SM_HPS": self._values,
            "SM_MODULE_DIR": "." if travels else self._folder,
            "SM_MODULE_NAME": self.name.removesuffix(".py"),
            "SM_NUM_GPUS": self._gpus,
            "SM_USER_ARGS": self.arguments(),
            "SM_USER_ENTRY_POINT": self.name,
        }
        variables.update({f"SM_CHANNEL_{channel.upper()}": folder for channel, folder in folders.items()})
        variables.update({f"SM_HP_{name.upper()}": value for name, value in self._values.items()})
        # Other names are in SM_HPS alone.
        return {name: value for name, value in variables.items() if re.fullmatch(r"\w+", name, re.ASCII)}


def _channels(inputs: Any) -> Dict[str, TrainingInput]:
    channels = inputs if isinstance(inputs, dict) else {} if inputs is None else {"training": inputs}
    for channel in channels:
        if not _CHANNEL.fullmatch(channel):
            raise InvalidArgumentError(f'channel "{channel}": a name has letters, digits, ".", "-" and "_"')
    return {
        channel: given if isinstance(given, TrainingInput) else TrainingInput(str(given))
        for channel, given in channels.items()
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
