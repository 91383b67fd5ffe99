"""Where the package finds the program `millrace`."""

import sysconfig

import pytest

from millrace.errors import NotFoundError
from millrace.programs import find_program


def write_program(folder):
    folder.mkdir()
    (folder / "millrace").write_text("#!/bin/sh\n")
    (folder / "millrace").chmod(0o755)
    return str(folder / "millrace")


def test_the_one_beside_python_is_found_after_those_in_path(monkeypatch, tmp_path):
    beside, in_path = write_program(tmp_path / "beside"), tmp_path / "path"
    monkeypatch.delenv("MILLRACE_PROGRAM", raising=False)
    monkeypatch.setenv("PATH", str(in_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "beside"))
    assert find_program() == beside
    assert find_program(write_program(in_path)) == find_program() == str(in_path / "millrace")
    with pytest.raises(NotFoundError, match="MILLRACE_PROGRAM"):
        find_program("no-such-program")
