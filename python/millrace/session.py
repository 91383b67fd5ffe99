"""Connections to a store. All objects of a process with the same options share a connection pool and an identity."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

from . import _native
from .errors import InvalidArgumentError

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(size: Union[int, str]) -> int:
    """Returns the bytes of 512, "512MiB", "1 GiB" or "64M". Units are powers of two."""
    if isinstance(size, int):
        return size
    text = size.strip().upper()
    for ending in ("IB", "B"):
        if text.endswith(ending):
            text = text[: -len(ending)]
            break
    text = text.strip()
    unit = text[-1:] if text[-1:] in "KMGT" else ""
    try:
        return int(float(text[: len(text) - len(unit)]) * _SUFFIXES[unit])
    except ValueError:
        raise InvalidArgumentError(f'"{size}" is not a size; write 512MiB or 2GiB') from None


@dataclass(frozen=True)
class Options:
    """How to reach the store. Empty fields come from the environment and the shared AWS files, as in the AWS CLI.

    ``memory`` bounds the data that a process has in flight: parts of transfers, shuffle windows, batches.
    """

    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    ca_bundle: str = ""
    anonymous: bool = False
    memory: Union[int, str] = "1GiB"
    log_level: str = "warning"


_sessions: Dict[Tuple[int, Options], _native.Session] = {}


def session_of(options: Optional[Options]) -> _native.Session:
    """Returns this process's session for the options. Opens it at the first use, and again in a forked child."""
    wanted = options or Options()
    key = (os.getpid(), wanted)
    if key not in _sessions:
        _sessions[key] = _native.Session(
            endpoint_url=wanted.endpoint_url,
            region=wanted.region,
            profile=wanted.profile,
            ca_bundle=wanted.ca_bundle,
            anonymous=wanted.anonymous,
            memory=parse_bytes(wanted.memory),
            log_level=wanted.log_level,
        )
    return _sessions[key]
