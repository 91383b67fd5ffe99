"""The text of records, front to back."""

from __future__ import annotations

import os
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native
from .errors import CorruptError
from .session import Options, session_of


class Source(NamedTuple):
    """Data at one URL: an object, a prefix ending in ``/``, a glob, or ``@`` and the URL of a list of such; ``#split``,
    ``#config`` or ``#config:split`` behind it chooses from a data set of Hugging Face."""

    url: str
    weight: float = 1.0
    """Passes over it an epoch."""
    format: str = ""
    """Of its objects, when their names do not say it: ``"jsonl"``, ``"json"`` (one array; ``"json:data"``: the array in
    that field), ``"lines"``, ``"text"``, ``"tar"``, ``"arrow"``, ``"parquet"``, with or without ``+gzip`` or ``+zstd``."""


Sources = Union[str, Sequence[Union[str, Tuple[str, float], Source]], Mapping[str, float]]


def sources_of(sources: Sources, format: str = "") -> List[Source]:
    """One URL, several, or URLs with weights; ``format`` is that of those which have none of their own."""
    if isinstance(sources, (str, os.PathLike, Source)):
        sources = [sources]  # type: ignore[list-item]
    elif isinstance(sources, Mapping):
        sources = list(sources.items())
    made = []
    for one in sources:
        url, *rest = (one,) if isinstance(one, (str, os.PathLike)) else one
        source = Source(os.fspath(url), *rest)  # type: ignore[arg-type]
        made.append(source._replace(weight=float(source.weight), format=source.format or format))
    return made


def documents(
    sources: Sources,
    *,
    template: str = "{text}",
    format: str = "",
    max_broken: Optional[int] = None,
    at_once: int = 64,
    connection: Optional[Options] = None,
) -> Iterator[str]:
    """The documents of all records, in the order of the sources, each once: for what needs the text once, such as
    training a tokenizer or counting words. Reading, decompressing and parsing run ahead on a C++ thread; ``at_once``
    documents cross into Python together. Records that cannot be used are left out; more of them than ``max_broken`` raise
    ``CorruptError``. ``format``: that of ``Source``."""
    native = _native.Documents(session_of(connection), sources_of(sources, format), template)
    while True:
        some = native.next(at_once)
        if max_broken is not None and native.broken > max_broken:
            raise CorruptError(
                f"{native.broken:,} records cannot be used, and {max_broken:,} are allowed; `millrace data inspect` names them"
            )
        if not some:
            return
        yield from some
