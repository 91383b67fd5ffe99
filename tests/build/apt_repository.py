#!/usr/bin/env python3
"""tools/release/apt-repository: apt reads the repository, takes it for signed, and refuses one that was changed.

    apt_repository.py SOURCE_FOLDER

Exit status 77: apt-utils or gpg is not here.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

VERSION = "1.2.3"


def run(*command, environment=None, fails=False):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env=os.environ | (environment or {}))
    assert (done.returncode != 0) == fails, (command, done.stdout)
    return done.stdout


def make_package(folder, name, text):
    """A package with one file, and the same bytes each time."""
    tree = folder / f"{name}.tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: Tests <tests@localhost>\n"
                                         "Description: A package of a test\n")
    (tree / "file").write_text(text)
    (folder / "debs").mkdir(exist_ok=True)
    run("dpkg-deb", "--root-owner-group", "--build", tree, folder / "debs" / f"{name}_{VERSION}_amd64.deb", environment={"SOURCE_DATE_EPOCH": "1"})


class Apt:
    """apt-get with folders of its own, for one repository."""

    def __init__(self, folder, repository, distribution):
        self.folder = folder
        for part in ("lists/partial", "archives/partial", "parts", "etc"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        shutil.copy(repository / "millrace.asc", folder / "millrace.asc")
        (folder / "sources.list").write_text(f"deb [arch=amd64 signed-by={folder}/millrace.asc] file://{repository} {distribution} main\n")

    def __call__(self, *words, fails=False):
        settings = {"Dir::Etc::SourceList": self.folder / "sources.list", "Dir::Etc::SourceParts": self.folder / "parts",
                    "Dir::State::Lists": self.folder / "lists", "Dir::State::Status": self.folder / "status",
                    "Dir::Cache": self.folder / "archives", "APT::Sandbox::User": "root", "APT::Architecture": "amd64",
                    "APT::Update::Error-Mode": "any"}
        flags = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return run("apt-get", *flags, *words, fails=fails)


def main():
    tool = pathlib.Path(sys.argv[1]).resolve() / "tools/release/apt-repository"
    for program in ("apt-ftparchive", "gpg"):
        if not shutil.which(program):
            print(f"skipped: {program} is not here: install apt-utils and gpg")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_package(folder, "millrace", "one")
        make_package(folder, "millrace-engine", "two")
        home = folder / "keys"
        home.mkdir(mode=0o700)
        keys = {"GNUPGHOME": str(home)}
        run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "releaser@localhost", "ed25519", "sign", "never", environment=keys)
        try:
            repository = folder / "repository"
            run(tool, repository, "--key", "releaser@localhost", f"bookworm={folder}/debs", f"trixie={folder}/debs", environment=keys)
            refused = run(tool, repository, f"bookworm={folder}/debs", fails=True)
            assert "exists already" in refused, refused
        finally:
            run("gpgconf", "--kill", "all", environment=keys)
        for distribution in ("bookworm", "trixie"):
            apt = Apt(folder / distribution, repository, distribution)
            apt("update")
            shown = apt("install", "--simulate", "millrace-engine")
            assert f"Inst millrace-engine ({VERSION} Millrace:{distribution} [amd64])" in shown, shown

        # The same packages make the same files.
        for copy in ("first", "second"):
            run(tool, folder / copy, f"bookworm={folder}/debs")
        run("diff", "-r", folder / "first", folder / "second")

        # A package list that somebody changed does not fit the signed hashes.
        packages = repository / "dists/trixie/main/binary-amd64/Packages"
        for file in (packages, packages.with_suffix(".gz")):
            file.unlink()
        packages.write_text("Package: millrace\nVersion: 9\nArchitecture: amd64\nFilename: pool/trixie/other.deb\n")
        changed = Apt(folder / "changed", repository, "trixie")
        shown = changed("update", fails=True)
        assert "Packages" in shown or "Hash Sum" in shown, shown

        refused = run(tool, folder / "third", "bookworm", fails=True)
        assert "CODENAME=FOLDER" in refused and not (folder / "third").exists(), refused
        refused = run(tool, folder / "third", f"bookworm={folder}/nothing", fails=True)
        assert "make package" in refused and not (folder / "third").exists(), refused
    print("apt reads the repository, and refuses a changed one")


main()
