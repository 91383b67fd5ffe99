"""Builds the wheel from the build folder, checks its content, and imports the installed package."""

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BACKEND = ROOT / "tools" / "python_backend.py"


@pytest.fixture(scope="module")
def backend():
    spec = importlib.util.spec_from_file_location("python_backend", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(backend, tmp_path_factory):
    if not backend.built():
        pytest.skip("build/release has no module for this Python that is newer than its sources")
    began = time.monotonic()
    path = subprocess.run(
        [sys.executable, str(BACKEND), str(tmp_path_factory.mktemp("dist"))], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    assert time.monotonic() - began < 60
    return path


def test_what_it_lists_is_what_it_holds(wheel, backend):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith("/RECORD")]
        listed = {}
        for line in archive.read(record).decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            listed[name] = (digest, size)
        assert set(listed) == set(names)
        for name in set(names) - {record}:
            content = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert listed[name] == (f"sha256={digest}", str(len(content)))
    assert {f"millrace/{backend.MODULE}", "millrace/__init__.py", "millrace/py.typed", "millrace/s3torchconnector/dcp.py"} <= set(names)


def test_it_is_imported_from_where_it_is_installed(wheel, tmp_path):
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0
    if pip:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path), wheel], check=True
        )
    else:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
    (tmp_path / "text").write_text("content")
    program = "import millrace, sys; print(millrace.__file__, millrace.open(sys.argv[1], 'r').read())"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "text")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path / "millrace" / "__init__.py"), "content"]


def test_compiling_says_how_far_it_is(backend):
    told = []
    progress = backend.Progress(lambda text, end="\n": told.append((text, end)))
    for step in range(1, 41):
        progress(f"[{step}/40] Building CXX object x.cc.o\n")
    progress("warning: something\n")
    lines = [text for text, end in told if end]
    assert len(lines) == 10 and "compiling, 50 % of 40 steps" in lines[4]
    assert "step 1 of 40" in told[0][0]


def test_other_settings_than_the_builds_are_compiled(backend):
    assert backend.built({"cmake.define.MILLRACE_ARROW": "OFF"}) is None
    assert backend.get_requires_for_build_wheel({"cmake.define.MILLRACE_ARROW": "OFF"}) == ["pybind11>=2.12"]
