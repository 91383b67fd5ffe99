"""The text of records, front to back."""

from __future__ import annotations

import os
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native
from .errors import CorruptError
from .session import Options, session_of


class Source(NamedTuple):
    """Data at one URL: an object, a prefix ending in ``/``, a glob, or ``@`` and the URL of a list of these.
    ``#split``, ``#config`` or ``#config:split`` at the end chooses from a Hugging Face data set."""

    url: str
    weight: float = 1.0
    """Passes over the source in an epoch."""
    format: str = ""
    """The format of the objects, if their names do not tell it: ``"jsonl"``, ``"json"`` (one array; ``"json:data"``:
    the array in this field), ``"objects"``, ``"lines"``, ``"text"``, ``"tar"``, ``"arrow"`` or ``"parquet"``. ``+gzip``
    or ``+zstd`` may follow."""
    split: str = ""
    """The split of a Hugging Face data set, the same as ``#split`` at the end of the URL."""


Sources = Union[str, Sequence[Union[str, Tuple[str, float], Source]], Mapping[str, float]]


def sources_of(sources: Sources, format: str = "", split: str = "") -> List[Source]:
    """Returns the sources as a list. ``format`` and ``split`` are the defaults of sources without their own."""
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
    """Yields the document of each record once, in the order of the sources, for example to train a tokenizer.

    Reading, decompressing and parsing run ahead on C++ threads. Python gets up to ``at_once`` documents at a time.
    Unusable records are left out. More than ``max_broken`` of them raise ``CorruptError``. ``format`` and ``split``:
    those of ``Source``."""
    native = _native.Documents(session_of(connection), sources_of(sources, format, split), template)
    while True:
        some = native.next(at_once)
        if max_broken is not None and native.broken > max_broken:
            raise CorruptError(
                f"{native.broken:,} records cannot be used, and {max_broken:,} are allowed; "
                "`millrace data inspect` names them"
            )
        if not some:
            return
        yield from some
