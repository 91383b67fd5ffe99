#!/usr/bin/env python3
"""tools/release/arm64-package: the package for arm64 has the program, and no library and no program of amd64.

    arm64_package.py SOURCE_FOLDER

Exit status 77: dpkg-deb is not here.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = "\x7fELF of arm64"


def make_package(folder, files):
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text("Package: millrace\nVersion: 1.2.3\nArchitecture: amd64\nMaintainer: Tests <tests@localhost>\n"
                                         "Depends: fuse3, libcurl4 (>= 7.18.0)\nSuggests: millrace-engine\nDescription: A package of a test\n")
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    package = folder / "millrace_1.2.3_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, package], check=True, stdout=subprocess.DEVNULL)
    return package


def make_arm64(source, folder, files):
    """Makes the package in FOLDER/out. Returns what the tool wrote to standard error, and the package."""
    (folder / "out").mkdir(parents=True)
    (folder / "program").write_text(PROGRAM)
    done = subprocess.run([source / "tools/release/arm64-package", make_package(folder, files), folder / "program", folder / "out"],
                          stderr=subprocess.PIPE, text=True, check=False)
    return done.stderr, folder / "out/millrace_1.2.3_arm64.deb"


def main():
    if shutil.which("dpkg-deb") is None:
        print("skipped: dpkg-deb is not here")
        sys.exit(77)
    source = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        common = {"usr/bin/millrace": "\x7fELF of amd64", "usr/share/man/man1/millrace.1": "a page"}
        error, package = make_arm64(source, work / "one", common)
        assert package.exists(), error
        fields = subprocess.run(["dpkg-deb", "--field", package, "Architecture", "Depends", "Suggests"], check=True, capture_output=True,
                                text=True).stdout
        assert fields == "Architecture: arm64\nDepends: fuse3\n", fields
        subprocess.run(["dpkg-deb", "--extract", package, work / "seen"], check=True)
        assert (work / "seen/usr/bin/millrace").read_text() == PROGRAM
        assert (work / "seen/usr/bin/millrace-csi").readlink() == pathlib.Path("millrace")
        assert (work / "seen/usr/share/man/man1/millrace.1").read_text() == "a page"
        first = package.read_bytes()
        package.unlink()
        shutil.rmtree(work / "one")
        make_arm64(source, work / "one", common)
        assert package.read_bytes() == first, "the same input makes the same bytes"

        error, package = make_arm64(source, work / "two", {**common, "usr/lib/millrace/helper": "\x7fELF of amd64"})
        assert not package.exists() and "usr/lib/millrace/helper" in error, error


main()
