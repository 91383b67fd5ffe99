"""A model server that ``Estimator.deploy`` or ``millrace.deploy`` started on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from typing import Any, Optional

from .errors import Error, UnsupportedError
from .programs import Program, clean_message

#: Seconds that a server may take to load its model. A guess.
START_SECONDS = 600
#: Seconds between two looks for the server's port. A guess.
POLL_SECONDS = 0.1


class EndpointError(Error):
    """The server answered a request with an error. ``status`` is that of HTTP; 0: there was no answer."""

    code = "unavailable"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """A `millrace serve` on a free port of 127.0.0.1. It ends with ``delete_endpoint``, with a ``with`` block, or with this
    process."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, name: str) -> None:
        self._process = process
        #: The server's base URL. It takes OpenAI's /v1/completions, too.
        self.url = url
        self.endpoint_name = name
        self._end = weakref.finalize(self, _end, process)

    def predict(self, data: Any, initial_args: Any = None) -> Any:
        """Posts ``data`` to SageMaker's /invocations and returns the answer.

        ``data`` is a text, {"inputs": text or texts, "parameters": {…}} as Hugging Face's endpoints take it, or a body of
        OpenAI's /v1/completions. Errors: EndpointError.
        """
        if initial_args is not None:
            raise UnsupportedError("predict: leave initial_args out; there is one model behind this endpoint")
        body = {"inputs": data} if isinstance(data, (str, list)) else data
        request = urllib.request.Request(
            self.url + "/invocations",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        try:
            with opener.open(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise EndpointError(_message(error.read().decode(errors="replace")), error.code) from None
        except urllib.error.URLError as error:
            raise EndpointError(f"{self.endpoint_name} does not answer: {error.reason}") from None

    def delete_endpoint(self, delete_endpoint_config: bool = True) -> None:
        """Ends the server, after the answers that it is making. Does nothing the second time."""
        self._end()

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.delete_endpoint()


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (KeyError, TypeError, ValueError):
        return body.strip()


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()


def serve(program: Program, model: str, *, name: str, arguments: Any = ()) -> Endpoint:
    """Starts a server of the model at a URL and waits until it takes requests. Errors: EndpointError with what it said."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = os.path.join(folder, "port")
        with open(os.path.join(folder, "errors"), "w+b") as errors:
            process = subprocess.Popen(
                program.command(
                    "serve", model, "--listen", "127.0.0.1:0", "--port-file", port_file, "--name", name, *arguments
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=program.variables(),
            )
            began = time.monotonic()
            try:
                while (port := _port(port_file)) is None:
                    if process.poll() is not None or time.monotonic() - began > START_SECONDS:
                        errors.seek(0)
                        said = clean_message(errors.read().decode(errors="replace"))
                        raise EndpointError(f"the server of {model} did not start: {said}")
                    time.sleep(POLL_SECONDS)
            except BaseException:
                _end(process)
                raise
    return Endpoint(process, f"http://127.0.0.1:{port}", name)


def _port(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
