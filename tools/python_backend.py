"""Builds the Python package (PEP 517): `pip install .` and `make wheel` come here.

Where build/release has the extension module for this Python, as after `make build`, a wheel is made of that in seconds. Where
it has not, the module is compiled first, and how far that is goes to the terminal: pip hides what builds print.

    python3 tools/python_backend.py [FOLDER]        a wheel into FOLDER (default: dist)
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MODULE = "_native" + SUFFIX
ARROW = "libmillrace_arrow.so"
DEPENDENCIES = ["numpy>=1.22"]
EXTRAS = {
    "torch": ["torch"],
    "fsspec": ["fsspec"],
    "transformers": ["torch", "transformers", "accelerate"],
    "test": ["pytest", "fsspec", "pandas"],
}
#: What the module is made of.
SOURCES = ("millrace", "python/native", "cmake", "CMakeLists.txt", "python/CMakeLists.txt")


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(millrace VERSION ([0-9.]+)", file.read()).group(1)


def say(text, *, end="\n"):
    """Prints to the terminal, because pip hides the output of builds. Without a terminal, prints whole lines to standard error."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\r\033[K{text}{end}" if end == "" else f"\r\033[K{text}\n")
    except OSError:
        if end:
            print(text, file=sys.stderr, flush=True)


def newest_source():
    newest = 0.0
    for source in SOURCES:
        path = os.path.join(ROOT, source)
        files = [path] if os.path.isfile(path) else (
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if name.endswith((".cc", ".h", ".txt", ".cmake")) and not name.endswith("_test.cc")
        )
        newest = max([newest, *(os.path.getmtime(file) for file in files)])
    return newest


def defines(settings):
    """Returns the definitions in --config-settings=cmake.define.NAME=VALUE."""
    prefix = "cmake.define."
    return {key[len(prefix) :]: value for key, value in (settings or {}).items() if key.startswith(prefix)}


def built(settings=None):
    """Returns the folder of a build whose module is for this Python and newer than its sources; None if there is none."""
    if defines(settings):
        return None
    for build in ("release", "wheel"):
        folder = os.path.join(ROOT, "build", build, "python", "millrace")
        module = os.path.join(folder, MODULE)
        if os.path.exists(module) and os.path.getmtime(module) >= newest_source():
            return folder
    return None


def run(command, watch=None):
    """Runs a command and passes each line of its output to `watch`. If the command fails, raises with its error lines."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            lines = [*lines[-200:], line.rstrip()]
            print(line, end="", flush=True)
            if watch:
                watch(line)
    if process.returncode != 0:
        told = [line for line in lines if "error" in line.lower()][:10] or lines[-10:]
        raise SystemExit("millrace: building failed: " + " ".join(command) + "\n" + "\n".join(told))


class Progress:
    """Shows ninja's progress "[12/240] …": one line that changes on a terminal, else a line for every tenth."""

    def __init__(self, tell=say):
        self._tell, self._began, self._tenth, self._told = tell, time.monotonic(), 0, 0.0

    def __call__(self, line):
        found = re.match(r"\[(\d+)/(\d+)\]", line)
        if not found:
            return
        done, steps = int(found.group(1)), int(found.group(2))
        now = time.monotonic()
        tenth = 10 * done // steps
        if tenth > self._tenth:
            self._tenth = tenth
            self._tell(f"millrace: compiling, {10 * tenth} % of {steps} steps after {now - self._began:.0f} s")
        elif now - self._told > 1:
            self._told = now
            self._tell(f"millrace: compiling, step {done} of {steps}", end="")


def refreshed(settings):
    """Compiles what has changed in build/release, and returns its folder; None if that build is of another tree or Python."""
    build = os.path.join(ROOT, "build", "release")
    folder = os.path.join(build, "python", "millrace")
    if defines(settings) or not os.path.exists(os.path.join(folder, MODULE)):
        return None
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8", errors="replace") as file:
        if f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in file.read():
            return None
    say("millrace: build/release is older than its sources, bringing it up to date")
    run(["cmake", "--build", build, "--target", "millrace_python"], Progress())
    return folder


def compile_module(settings):
    folder = os.path.join(ROOT, "build", "wheel")
    if shutil.which("cmake") is None:
        raise SystemExit("millrace: there is no cmake: `tools/setup build` installs what compiling needs")
    say("millrace: no build for this Python in build/release, compiling; that takes some minutes")
    options = {"CMAKE_BUILD_TYPE": "Release", "MILLRACE_ENGINE": "OFF", "MILLRACE_TESTS": "OFF", "Python3_EXECUTABLE": sys.executable}
    try:
        import pybind11

        options["pybind11_DIR"] = pybind11.get_cmake_dir()
    except ImportError:
        pass  # the distribution's
    options.update(defines(settings))
    run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *(f"-D{name}={value}" for name, value in options.items())])
    run(["cmake", "--build", folder, "--target", "millrace_python"], Progress())
    return os.path.join(folder, "python", "millrace")


def metadata():
    with open(os.path.join(ROOT, "python", "README.md"), encoding="utf-8") as file:
        readme = file.read()
    lines = [
        "Metadata-Version: 2.1",
        "Name: millrace",
        f"Version: {version()}",
        "Summary: Train straight from the bucket: data sets, tokenizers and files of any S3-compatible store",
        "License: Apache-2.0",
        "Requires-Python: >=3.9",
        *(f"Requires-Dist: {name}" for name in DEPENDENCIES),
        *(line for extra in EXTRAS for line in [f"Provides-Extra: {extra}", *(f"Requires-Dist: {name}; extra == '{extra}'" for name in EXTRAS[extra])]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + readme


def stripped(path, scratch):
    """Strips debugging information, which is most of the file."""
    smaller = os.path.join(scratch, os.path.basename(path))
    try:
        subprocess.run(["strip", "--strip-unneeded", "-o", smaller, path], check=True, capture_output=True)
        return smaller
    except (OSError, subprocess.CalledProcessError):
        return path


def tag():
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def write_wheel(folder, files, wheel_tag=None):
    """Packs pairs of (name in the wheel, path or bytes). The tag is that of this Python and machine unless it is given.
    Returns the wheel's name."""
    wheel_tag = wheel_tag or tag()
    name, info = f"millrace-{version()}-{wheel_tag}.whl", f"millrace-{version()}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: millrace\nRoot-Is-Purelib: false\nTag: {wheel_tag}\n"
    points = "[fsspec.specs]\nmillrace = millrace.filesystem:MillraceFileSystem\n"
    with open(os.path.join(ROOT, "LICENSE"), "rb") as file:
        licence = file.read()
    files = [
        *files,
        (f"{info}/METADATA", metadata().encode()),
        (f"{info}/WHEEL", wheel.encode()),
        (f"{info}/entry_points.txt", points.encode()),
        (f"{info}/LICENSE", licence),
    ]
    record = ""
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for inside, content in files:
            if not isinstance(content, bytes):
                with open(content, "rb") as file:
                    content = file.read()
            entry = zipfile.ZipInfo(inside, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            runs = inside.endswith(".so") or ".data/scripts/" in inside
            entry.external_attr = (0o100755 if runs else 0o100644) << 16  # pip wants to see that it is a regular file
            archive.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{inside},sha256={digest},{len(content)}\n"
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2020, 1, 1, 0, 0, 0)), record + f"{info}/RECORD,,\n")
    return name


# What pip calls


def get_requires_for_build_wheel(config_settings=None):
    return [] if built(config_settings) else ["pybind11>=2.12"]


def python_files():
    """Returns pairs of (name in the wheel, path) of the package's Python files."""
    sources = os.path.join(ROOT, "python", "millrace")
    return [
        (os.path.join("millrace", os.path.relpath(folder, sources), name).replace("/./", "/"), os.path.join(folder, name))
        for folder, _, names in sorted(os.walk(sources))
        for name in sorted(names)
        if name.endswith((".py", ".pyi")) or name == "py.typed"
    ]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    binaries = built(config_settings) or refreshed(config_settings) or compile_module(config_settings)
    files = python_files()
    with tempfile.TemporaryDirectory() as scratch:
        for name in (MODULE, ARROW):
            path = os.path.realpath(os.path.join(binaries, name))
            if os.path.exists(path):
                files.append((f"millrace/{name}", stripped(path, scratch)))
        return write_wheel(wheel_directory, files)


get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Imports the build's folder: a new build is there at once, as are changes that it copies."""
    binaries = built(config_settings) or refreshed(config_settings) or compile_module(config_settings)
    return write_wheel(wheel_directory, [("millrace.pth", (os.path.dirname(binaries) + "\n").encode())])


def build_sdist(sdist_directory, config_settings=None):
    base = f"millrace-{version()}"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz") as archive:
        for name in filter(None, names.split("\0")):
            archive.add(os.path.join(ROOT, name), f"{base}/{name}")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(metadata())
            file.flush()
            archive.add(file.name, f"{base}/PKG-INFO")
    return base + ".tar.gz"


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "dist")
    print(os.path.join(target, build_wheel(target)))
