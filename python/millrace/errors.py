"""What Millrace raises: ``Error`` and, where Python has a class for the same thing, a subclass of both."""

from __future__ import annotations

from typing import Type


class Error(Exception):
    """A failure; ``code`` is its kind as logs and scripts see it ("not_found")."""

    code: str = "internal"


def _kind(name: str, code: str, *bases: type) -> Type[Error]:
    return type(name, (Error, *bases), {"code": code, "__module__": __name__})


InvalidArgumentError = _kind("InvalidArgumentError", "invalid_argument", ValueError)
NotFoundError = _kind("NotFoundError", "not_found", FileNotFoundError)
AlreadyExistsError = _kind("AlreadyExistsError", "already_exists", FileExistsError)
PreconditionFailedError = _kind("PreconditionFailedError", "precondition_failed")
PermissionDeniedError = _kind("PermissionDeniedError", "permission_denied", PermissionError)
UnavailableError = _kind("UnavailableError", "unavailable", ConnectionError)
DeadlineExceededError = _kind("DeadlineExceededError", "deadline_exceeded", TimeoutError)
CorruptError = _kind("CorruptError", "corrupt")
ResourceExhaustedError = _kind("ResourceExhaustedError", "resource_exhausted", MemoryError)
UnsupportedError = _kind("UnsupportedError", "unsupported", NotImplementedError)
StaleError = _kind("StaleError", "stale")

_BY_CODE = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        AlreadyExistsError,
        PreconditionFailedError,
        PermissionDeniedError,
        UnavailableError,
        DeadlineExceededError,
        CorruptError,
        ResourceExhaustedError,
        UnsupportedError,
        StaleError,
    )
}


def of_code(code: str) -> Type[Error]:
    """The class for a code; made on the spot for those that have no name of their own."""
    if code not in _BY_CODE:
        _BY_CODE[code] = _kind("Error_" + code, code)
    return _BY_CODE[code]
