#!/usr/bin/env python3
"""Configures the tree with each optional package absent, too old, or half installed: the programs must still build.

    optional_packages.py SOURCE_FOLDER

Only CMake runs, and Ninja without starting anything; the engine is left out, since it has no optional package of its own.
"""
import pathlib
import subprocess
import sys
import tempfile


def package(folder, name, version, config):
    """A CMake package of that version whose configuration is `config`."""
    (folder / f"{name}Config.cmake").write_text(config)
    (folder / f"{name}ConfigVersion.cmake").write_text(
        f'set(PACKAGE_VERSION "{version}")\n'
        "if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
    return f"-D{name}_DIR={folder}"


def script(folder, text):
    """An executable that stands for a program."""
    path = folder / "program"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def library(name):
    return f"if(NOT TARGET {name})\n  add_library({name} INTERFACE IMPORTED)\nendif()\n"


# What each case passes to CMake, given a folder of its own; and what CMake must still say of it, if anything.
CASES = {
    "all that is here": lambda folder: [],
    "no GoogleTest": lambda folder: ["-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"],
    "GoogleTest without GoogleMock": lambda folder: [package(folder, "GTest", "1.12.1", library("GTest::gtest"))],
    "an old GoogleTest": lambda folder: [
        package(folder, "GTest", "1.8.0", library("GTest::gmock") + library("GTest::gmock_main"))],
    "no pybind11": lambda folder: ["-DCMAKE_DISABLE_FIND_PACKAGE_pybind11=ON"],
    "an old pybind11": lambda folder: [package(folder, "pybind11", "2.4.0", 'message(FATAL_ERROR "not to be read")')],
    "pybind11 without its headers": lambda folder: [
        package(folder, "pybind11", "2.10.3", library("pybind11::module") + f"set(pybind11_INCLUDE_DIR {folder})\n")],
    "a Python without headers": lambda folder: [
        "-DPython3_INCLUDE_DIR=/nonexistent", "-DCMAKE_DISABLE_FIND_PACKAGE_pybind11=OFF"],
    "pyarrow without its headers": lambda folder: [
        f"-DMILLRACE_ARROW_PYTHON={script(folder, f'echo {folder};echo {folder}')}"],
    "a Python that prints something else": lambda folder: [
        f"-DMILLRACE_ARROW_PYTHON={script(folder, 'echo hello')}"],
    "Arrow without Parquet's library": lambda folder: [
        package(folder, "Arrow", "24.0.0", library("Arrow::arrow_shared")),
        "-DCMAKE_DISABLE_FIND_PACKAGE_Parquet=ON", "-DMILLRACE_ARROW_PYTHON=/bin/false"],
    "no gRPC": lambda folder: ["-DMILLRACE_PROTOC="],
    "gRPC without its plug-in": lambda folder: ["-DMILLRACE_GRPC_PLUGIN="],
    "no CSI driver": lambda folder: ["-DMILLRACE_CSI=OFF"],
    "a ccache that does not run": lambda folder: [f"-DCCACHE_PROGRAM={script(folder, 'exit 127')}"],
    "a mold that does not run": lambda folder: [f"-DMOLD_PROGRAM={script(folder, 'exit 127')}"],
    "no ccache and no mold": lambda folder: ["-DCCACHE_PROGRAM=", "-DMOLD_PROGRAM="],
}


def main():
    source = pathlib.Path(sys.argv[1])
    failed = 0
    for name, arguments in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            parts = pathlib.Path(folder, "parts")
            parts.mkdir()
            build = f"{folder}/build"
            for command in (["cmake", "-G", "Ninja", "-S", str(source), "-B", build, "-DMILLRACE_ENGINE=OFF", *arguments(parts)],
                            ["ninja", "-C", build, "-n", "programs"]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    failed += 1
                    print(f"FAILED with {name}: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                    break
            else:
                print(f"ok     with {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
