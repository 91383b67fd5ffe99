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
    that field), ``"objects"``, ``"lines"``, ``"text"``, ``"tar"``, ``"arrow"``, ``"parquet"``, with or without ``+gzip`` or ``+zstd``."""
    split: str = ""
    """Of a data set of Hugging Face, as ``#split`` behind the URL says it."""


Sources = Union[str, Sequence[Union[str, Tuple[str, float], Source]], Mapping[str, float]]


def sources_of(sources: Sources, format: str = "", split: str = "") -> List[Source]:
    """One URL, several, or URLs with weights; ``format`` and ``split`` are those of the ones that have none of their own."""
    if isinstance(sources, (str, os.PathLike, Source)):
        sources = [sources]  # type: ignore[list-item]
    elif isinstance(sources, Mapping):
        sources = list(sources.items())
    made = []
    for one in sources:
        url, *rest = (one,) if isinstance(one, (str, os.PathLike)) else one
        source = Source(os.fspath(url), *rest)  # type: ignore[arg-type]
        chosen = source.split or ("" if "#" in source.url.rsplit("/", 1)[-1] else split)
        made.append(source._replace(weight=float(source.weight), format=source.format or format, split=chosen))
    return made


def documents(
    sources: Sources,
    *,
    template: str = "{text}",
    format: str = "",
    split: str = "",
    max_broken: Optional[int] = None,
    at_once: int = 256,
    connection: Optional[Options] = None,
) -> Iterator[str]:
    """The documents of all records, in the order of the sources, each once: for what needs the text once, such as
    training a tokenizer or counting words. Reading, decompressing and parsing run ahead on C++ threads; up to ``at_once``
    documents cross into Python together. Records that cannot be used are left out; more of them than ``max_broken`` raise
    ``CorruptError``. ``format`` and ``split``: those of ``Source``."""
    native = _native.Documents(session_of(connection), sources_of(sources, format, split), template)
    while True:
        some = native.next(at_once)
        if max_broken is not None and native.broken > max_broken:
            raise CorruptError(
                f"{native.broken:,} records cannot be used, and {max_broken:,} are allowed; `millrace data inspect` names them"
            )
        if not some:
            return
        yield from some
