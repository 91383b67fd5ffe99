"""Text to token ids and back, with the tokenizers that training uses."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Union

import numpy as np

from . import _native
from .errors import InvalidArgumentError, NotFoundError
from .session import Options, session_of


class Tokenizer:
    """A tokenizer read from a URL or a path. Immutable; threads may share it, and it can be pickled.

    Special tokens are never recognised in text: a document that contains ``"</s>"`` is text.
    """

    def __init__(self, url: Union[str, os.PathLike], *, connection: Optional[Options] = None) -> None:
        self.url = os.fspath(url)
        self._connection = connection
        try:
            self._native = _native.Tokenizer(session_of(connection), self.url)
        except (InvalidArgumentError, NotFoundError) as error:
            if "://" in self.url or os.path.exists(self.url):
                raise
            raise type(error)(
                f'tokenizer "{self.url}": there is no such file. A tokenizer is the URL or the path of a file '
                "(tokenizer.json, tokenizer.model, vocab.txt, tekken.json or a .tiktoken). That of a model of the "
                f'Hugging Face Hub is got by: huggingface_hub.hf_hub_download("{self.url}", "tokenizer.json")'
            ) from None

    def __reduce__(self):
        return _load, (self.url, self._connection)

    def __repr__(self) -> str:
        return f"millrace.Tokenizer({self.url!r}, kind={self.kind!r}, vocab_size={self.vocab_size})"

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: Union[str, bytes], *, bos: bool = False, eos: bool = False) -> "np.ndarray":
        """Returns the ids of ``text`` as an int32 array. ``bos`` and ``eos`` add these tokens if the model has them."""
        return self._native.encode(text, bos, eos)

    def encode_batch(
        self, texts: Sequence[Union[str, bytes]], *, bos: bool = False, eos: bool = False, threads: Optional[int] = None
    ) -> "List[np.ndarray]":
        """Encodes many texts on ``threads`` threads (default: the cores that this process may use)."""
        return self._native.encode_batch(texts, bos, eos, threads or 0)

    def decode(self, ids: "Union[Sequence[int], np.ndarray]") -> str:
        """Returns the text of ``ids``. Special tokens yield nothing. Bytes that are not UTF-8 become U+FFFD."""
        return self._native.decode(np.ascontiguousarray(ids, dtype=np.int32))

    def piece(self, id: int) -> bytes:
        """Returns the token as the model stores it."""
        return self._native.piece(id)

    @property
    def vocab_size(self) -> int:
        return self._native.vocab_size

    @property
    def bos(self) -> Optional[int]:
        return self._native.bos

    @property
    def eos(self) -> Optional[int]:
        return self._native.eos

    @property
    def unk(self) -> Optional[int]:
        return self._native.unk

    @property
    def kind(self) -> str:
        return self._native.kind

    @property
    def fingerprint(self) -> str:
        """A checksum of the model. Everything that was tokenized with the model records it."""
        return self._native.fingerprint


def _load(url: str, connection: Optional[Options]) -> Tokenizer:
    return Tokenizer(url, connection=connection)
