"""How a process reaches its store: one connection pool and one identity, shared by everything in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

from . import _native

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(size: Union[int, str]) -> int:
    """512, "512MiB", "1 GiB", "64M": powers of two, as all of Millrace reads them."""
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
        raise ValueError(f'"{size}" is not a size; write 512MiB or 2GiB') from None


@dataclass(frozen=True)
class Options:
    """How to reach the store. What is empty comes from the environment and the shared AWS files, as in the AWS CLI.

    ``memory`` bounds the data in flight of a process: parts on their way, shuffle windows, batches.
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
    """The session of this process for these options; opened at first use, and anew in a forked child."""
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
