"""The text of records, front to back."""

from __future__ import annotations

import os
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from .session import Options, session_of

Sources = Union[str, Sequence[Union[str, Tuple[str, float]]], Mapping[str, float]]


def weighted(sources: Sources) -> List[Tuple[str, float]]:
    """One URL, several, or URLs with weights: as (URL, weight)."""
    if isinstance(sources, (str, os.PathLike)):
        return [(os.fspath(sources), 1.0)]
    if isinstance(sources, Mapping):
        return [(os.fspath(url), float(weight)) for url, weight in sources.items()]
    return [(os.fspath(one), 1.0) if isinstance(one, (str, os.PathLike)) else (one[0], float(one[1])) for one in sources]


def documents(
    sources: Sources, *, template: str = "{text}", at_once: int = 64, connection: Optional[Options] = None
) -> Iterator[str]:
    """The documents of all records, in the order of the sources, each once: for what needs the text once, such as
    training a tokenizer or counting words. Reading, decompressing and parsing run ahead on a C++ thread; ``at_once``
    documents cross into Python together. Records that cannot be used are left out."""
    native = _native.Documents(session_of(connection), weighted(sources), template)
    while some := native.next(at_once):
        yield from some
