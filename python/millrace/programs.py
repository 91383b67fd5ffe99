"""The program ``millrace``, which runs jobs and serves models, as Python calls it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Dict, List, Optional

from .errors import Error, NotFoundError
from .session import Options


class ProgramError(Error):
    """A command of the program failed. ``status`` is its exit status, the message is what it printed."""

    code = "internal"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def find_program(path: Optional[str] = None) -> str:
    """Returns the path of the program: ``path``, $MILLRACE_PROGRAM, or ``millrace`` in PATH."""
    wanted = path or os.environ.get("MILLRACE_PROGRAM") or "millrace"
    # The wheel installs the program beside Python's own, which need not be in PATH.
    found = shutil.which(wanted) or shutil.which(wanted, path=sysconfig.get_path("scripts"))
    if found is None:
        raise NotFoundError(
            f"there is no program {wanted}: install Millrace's programs (a release has them in one file), "
            "or name the program with program= or MILLRACE_PROGRAM"
        )
    return found


class Program:
    """Runs commands of ``millrace`` with one connection and environment."""

    def __init__(
        self,
        path: Optional[str] = None,
        connection: Optional[Options] = None,
        environment: Optional[Dict[str, str]] = None,
    ) -> None:
        self.path = find_program(path)
        self.connection = connection
        self.environment = dict(environment or {})

    def command(self, *arguments: str) -> List[str]:
        """Returns the words of a command, with the connection's flags."""
        words = [self.path]
        if self.connection is not None:
            flags = {
                "--endpoint-url": self.connection.endpoint_url,
                "--region": self.connection.region,
                "--profile": self.connection.profile,
                "--ca-bundle": self.connection.ca_bundle,
            }
            words += [word for flag, value in flags.items() if value for word in (flag, value)]
            words += ["--no-sign-request"] if self.connection.anonymous else []
        return words + list(arguments)

    def variables(self) -> Dict[str, str]:
        return {**os.environ, **self.environment}

    def output(self, *arguments: str) -> str:
        """Runs a command and returns its standard output. Errors: ProgramError."""
        done = subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self.variables(),
        )
        if done.returncode != 0:
            raise ProgramError(clean_message(done.stderr) or f"{arguments[0]} failed", done.returncode)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Runs a command with --json and returns the one object that it prints."""
        return json.loads(self.output("--json", *arguments))


def clean_message(text: str) -> str:
    """Returns what the program printed on standard error without its own name."""
    return text.strip().removeprefix("millrace: ") if text else ""
