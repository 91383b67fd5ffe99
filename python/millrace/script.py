"""Training scripts of an Estimator, as SageMaker's script mode runs them.

The script gets the hyperparameters as arguments, and in ``SM_…`` variables the folders of its data and of its model.
Channels and the model are buckets that the job mounts.
"""

from __future__ import annotations

import json
import os
import re
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

    ``dependencies``: files and folders that it imports. ``gpus``: of one machine.
    """

    def __init__(
        self,
        entry_point: str,
        source_dir: Optional[str],
        hyperparameters: Dict[str, Any],
        dependencies: Sequence[str] = (),
        gpus: int = 0,
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
        self._imports = [self._folder, *(os.path.dirname(os.path.abspath(each)) for each in dependencies)]
        self._gpus = gpus
        self._values = {k: v for k, v in hyperparameters.items() if not k.startswith(_JOB_KEYS)}
        #: Keys of the job file.
        self.keys: Dict[str, Any] = {k: v for k, v in hyperparameters.items() if k.startswith(_JOB_KEYS)}

    def arguments(self) -> List[str]:
        """Returns the hyperparameters as words: --lr 0.1 --name abc."""
        words = []
        for name, value in sorted(self._values.items()):
            words += [f"--{name}" if len(name) > 1 else f"-{name}", "" if value is None else str(value)]
        return words

    def job(self, name: str, inputs: Any, output: str, checkpoints: Optional[str], path: Optional[str]) -> Dict[str, Any]:
        """Returns the job file of a run. ``output``: URL of the run's folder. ``checkpoints``: a URL, mounted at ``path``."""
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
        mounts[f"{output}/model/"] = model
        mounts[f"{output}/output/"] = data
        variables = self._variables(folders)
        variables.update(SM_MODEL_DIR=model, SM_OUTPUT_DATA_DIR=data)
        run: Dict[str, Any] = {
            "command": [*self._interpreter(), os.path.join(self._folder, self.name), *self.arguments()],
            "directory": self._folder,
            "env": {key: _text(value) for key, value in variables.items()},
            "mounts": mounts,
        }
        saved = {"url": checkpoints, **({"path": path} if path else {})} if checkpoints else {}
        return {"name": name, "run": run, **({"checkpoint": saved} if saved else {})}

    def _interpreter(self) -> List[str]:
        return ["bash"] if self.name.endswith(".sh") else [sys.executable]

    def _variables(self, folders: Dict[str, str]) -> Dict[str, Any]:
        path = os.environ.get("PYTHONPATH")
        variables: Dict[str, Any] = {
            "PYTHONPATH": os.pathsep.join([*dict.fromkeys(self._imports), *([path] if path else [])]),
            "SM_CHANNELS": sorted(folders),
            "SM_HPS": self._values,
            "SM_MODULE_DIR": self._folder,
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
