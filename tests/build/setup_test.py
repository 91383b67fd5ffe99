#!/usr/bin/env python3
"""Runs tools/setup. Where there is no apt, it names what is missing, and goes on if nothing is. Where another program
holds apt's lock, it waits.

    setup_test.py SOURCE_FOLDER
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SETUP = pathlib.Path(sys.argv.pop(1)) / "tools/setup"
NEEDED = ["bash", "cat", "dirname", "env", "python3"]  # of the script itself
# The programs of the group `build`. g++ stands for all headers, pkg-config for all libraries.
PROGRAMS = ["g++", "cmake", "ninja", "pkg-config", "git", "fusermount3"]


class WithoutApt(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        for name in NEEDED:
            (self.path / name).symlink_to(shutil.which(name))
        for name in PROGRAMS:
            self.have(name, "exit 0")

    def have(self, name, script):
        (self.path / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
        (self.path / name).chmod(0o755)

    def setup(self, *groups):
        return subprocess.run([SETUP, *groups], env={"PATH": str(self.path)}, capture_output=True, text=True)

    def test_a_machine_with_everything_goes_on(self):
        run = self.setup("build")
        self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ""))

    def test_programs_headers_and_libraries_are_named_with_their_versions(self):
        (self.path / "cmake").unlink()
        self.have("g++", 'while read -r line; do [[ $line != *fmt/format.h* ]] || exit 1; done')
        self.have("pkg-config", '[[ $2 != fuse3 ]]')
        run = self.setup()
        self.assertEqual(run.returncode, 1)
        head, *named = run.stderr.splitlines()
        self.assertIn("no apt", head)
        self.assertEqual(named, ["  CMake 3.25", "  fmt 9", "  libfuse 3.14"])

    def test_only_the_groups_that_were_asked_for_count(self):
        run = self.setup("build", "image")
        self.assertEqual((run.returncode, run.stderr.splitlines()[1:]), (1, ["  buildah", "  crun"]))


class WithApt(unittest.TestCase):
    """Stand-ins of apt and dpkg install a package into a copy of the tree."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tools").mkdir()
        shutil.copy(SETUP, self.root / "tools")
        self.programs = self.root / "programs"
        self.programs.mkdir()
        for name in [*NEEDED, "grep", "mkdir", "tail"]:
            (self.programs / name).symlink_to(shutil.which(name))
        self.program("dpkg-query", "exit 1")
        self.program("sudo", 'exec "$@"')
        self.program("sleep", "exit 0")

    def program(self, name, script):
        (self.programs / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
        (self.programs / name).chmod(0o755)

    def setup(self):
        return subprocess.run([self.root / "tools/setup", "demo"], env={"PATH": str(self.programs)}, capture_output=True,
                              text=True)

    def test_it_waits_for_another_program_that_installs(self):
        self.program("apt-get", f"""
            echo "$1" >>{self.root}/calls
            mapfile -t calls <{self.root}/calls
            [[ ${{#calls[@]}} -gt 3 ]] || {{ echo 'E: Could not get lock /var/lib/apt/lists/lock'; exit 100; }}""")
        run = self.setup()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.splitlines()[1:], ["setup: waiting for another program that installs packages"])
        self.assertEqual((self.root / "calls").read_text().split(), ["update"] * 4 + ["install"])

    def test_another_failure_ends_it(self):
        self.program("apt-get", "echo 'E: Unable to locate package'; exit 100")
        run = self.setup()
        self.assertEqual(run.returncode, 1)
        self.assertIn("E: Unable to locate package\nsetup: failed: apt-get update", run.stderr)


if __name__ == "__main__":
    unittest.main()
