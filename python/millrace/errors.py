"""The exceptions of Millrace. Each is an ``Error``, and Python's exception for the same failure if there is one."""

from __future__ import annotations

from typing import Type


class Error(Exception):
    """A failure. ``code`` is its error code, as in logs ("not_found")."""

    code: str = "internal"


def _make_class(name: str, code: str, *bases: type) -> Type[Error]:
    return type(name, (Error, *bases), {"code": code, "__module__": __name__})


InvalidArgumentError = _make_class("InvalidArgumentError", "invalid_argument", ValueError)
NotFoundError = _make_class("NotFoundError", "not_found", FileNotFoundError)
AlreadyExistsError = _make_class("AlreadyExistsError", "already_exists", FileExistsError)
PreconditionFailedError = _make_class("PreconditionFailedError", "precondition_failed")
PermissionDeniedError = _make_class("PermissionDeniedError", "permission_denied", PermissionError)
UnavailableError = _make_class("UnavailableError", "unavailable", ConnectionError)
DeadlineExceededError = _make_class("DeadlineExceededError", "deadline_exceeded", TimeoutError)
CorruptError = _make_class("CorruptError", "corrupt")
ResourceExhaustedError = _make_class("ResourceExhaustedError", "resource_exhausted", MemoryError)
UnsupportedError = _make_class("UnsupportedError", "unsupported", NotImplementedError)
StaleError = _make_class("StaleError", "stale")

_BY_CODE = {
    error_class.code: error_class
    for error_class in (
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
    """Returns the class for an error code. Makes a class for a code without one."""
    if code not in _BY_CODE:
        _BY_CODE[code] = _make_class("Error_" + code, code)
    return _BY_CODE[code]
