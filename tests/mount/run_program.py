#!/usr/bin/env python3
"""Runs one program of tests/mount/programs on a real mount of a fresh bucket, and looks at what it left from outside.

    run_program.py NAME --bin FOLDER [--mount millrace|s3fs|rclone] [--seconds N]

The program is a script with two steps. `work` runs in an empty folder of the mount. Afterwards every file must be the
same on a second mount, which shares nothing with the first, and in the bucket, fetched without any mount; then `see` runs
in the same folder of the second mount. Both steps find a local folder in $SCRATCH; $SECONDS_MORE says for how long
those that take any length of time should run. A line `# needs: git, python:torch, root` names what must be there.

Exit status: 0 all right, 77 something is absent (the reason is printed), anything else a failure.
"""
import argparse
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
STEP_SECONDS = 100  # for what a step may take beyond --seconds
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"))


class Failure(Exception):
    pass


class Absent(Exception):
    pass


def run(*command, seconds=60, **options):
    """Fails with the end of its output; kills the whole group when time is up."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                 start_new_session=True, **options)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = "nothing, and was killed"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status != 0:
        raise Failure(f"{' '.join(command)}\nended with {status} after at most {seconds} s:\n{text[-6000:]}")


# --- Endpoint and mounts ---


class Bucket:
    """A `millrace s3d` with one bucket."""

    def __init__(self, millrace, folder, cleanup, *flags):
        self.millrace, self.folder = millrace, folder
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("AWS_") and not name.lower().endswith("_proxy")}
        key, secret = "programs", os.urandom(12).hex()
        self.environment |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1",
                             "MILLRACE_S3D_ACCESS_KEY": key, "MILLRACE_S3D_SECRET_KEY": secret,
                             "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
        port_file = folder / "port"
        server = subprocess.Popen([millrace, "s3d", "--root", folder / "s3", "--no-sync", "--port-file", port_file, *flags],
                                  env=self.environment, stdout=subprocess.DEVNULL)
        cleanup.callback(server.wait)
        cleanup.callback(server.terminate)
        deadline = time.monotonic() + 30
        while not port_file.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failure("millrace s3d did not start")
            time.sleep(0.01)
        self.environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:" + port_file.read_text().strip()
        self.call("mb", "s3://bucket")

    def call(self, *arguments, **options):
        run(self.millrace, *arguments, env=self.environment, **options)

    def fetch(self, folder):
        """All files, by the client alone."""
        self.call("sync", "s3://bucket/work/", f"{folder}/", "--quiet")
        return folder


class Mount:
    """The bucket on a folder, with caches of its own. Unmounting publishes everything."""

    publishes_on_close = True

    def __init__(self, bucket, home, cleanup, *flags):
        self.bucket, self.home, self.point, self.flags, self.mounted = bucket, home, home / "mnt", flags, True
        self.point.mkdir(parents=True, exist_ok=True)
        self.environment = bucket.environment | {"XDG_CACHE_HOME": str(home / "cache"), "HOME": str(home)}
        cleanup.callback(self.clear)
        self.start()

    def start(self):
        run(self.bucket.millrace, "mount", "s3://bucket", self.point, "--log-file", self.home / "log",
            *self.flags, env=self.environment)

    def stop(self):
        run(self.bucket.millrace, "umount", self.point, env=self.environment)
        self.mounted = False

    def clear(self):
        """Whatever has happened before."""
        if self.mounted:
            subprocess.run(["umount", "-l", self.point] if os.geteuid() == 0 else ["fusermount3", "-uz", self.point],
                           stderr=subprocess.DEVNULL)

    def log(self):
        path = self.home / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""


class ForeignMount(Mount):
    """Another maker's, as a daemon that this one ends."""

    publishes_on_close = False

    def command(self):
        raise NotImplementedError

    def start(self):
        self.daemon = subprocess.Popen(self.command(), env=self.environment, stdout=(self.home / "log").open("wb"),
                                       stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 20
        while not os.path.ismount(self.point):
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                raise Failure("it does not mount:\n" + self.log())
            time.sleep(0.05)

    def stop(self):
        run("umount", self.point)
        self.mounted = False
        self.daemon.wait(60)

    def clear(self):
        super().clear()
        self.daemon.kill()
        self.daemon.wait()


class S3fsMount(ForeignMount):
    def command(self):
        return ["s3fs", "bucket", self.point, "-f", "-o", "url=" + self.environment["AWS_ENDPOINT_URL"],
                "-o", "use_path_request_style", "-o", "use_xattr", "-o", f"tmpdir={self.home}"]


class RcloneMount(ForeignMount):
    def command(self):
        return ["rclone", "mount", ":s3:bucket", self.point, "--s3-provider=Other", "--s3-env-auth",
                "--s3-force-path-style", "--s3-endpoint=" + self.environment["AWS_ENDPOINT_URL"],
                "--vfs-cache-mode=writes", "--vfs-write-back=0", f"--cache-dir={self.home}/cache", "--config=/dev/null"]


MOUNTS = {"millrace": Mount, "s3fs": S3fsMount, "rclone": RcloneMount}


# --- What is there ---


def describe(folder):
    """Every path below: type, permissions, and content. A folder that cannot be listed is an error, not an empty one."""
    def fail(error):
        raise error

    found = {}
    for parent, folders, files in os.walk(folder, onerror=fail):
        for name in folders + files:
            path = pathlib.Path(parent, name)
            info = path.lstat()
            kind = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}.get(
                stat.S_IFMT(info.st_mode), "other")
            content = ""
            if kind == "file":
                with path.open("rb") as file:
                    content = f"{info.st_size} bytes {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
            elif kind == "link":
                content = os.readlink(path)
            found[str(path.relative_to(folder))] = (kind, f"{stat.S_IMODE(info.st_mode):o}", content)
    return found


def differences(expected, found, where):
    lines = [f"{name}: {expected.get(name, 'absent')} where it was written, {found.get(name, 'absent')} {where}"
             for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
    return "\n".join(lines[:20])


def wait_until_same(expected, folder, where):
    """Files into which nothing was written appear moments after they were closed; all others are there."""
    deadline = time.monotonic() + 5
    while (different := differences(expected, describe(folder), where)):
        if time.monotonic() > deadline:
            raise Failure(different)
        time.sleep(0.2)


# --- Programs ---


def find_interpreter(script, modules):
    if script.suffix == ".sh":
        return ["/bin/bash", "-xeuo", "pipefail", script]
    for python in (PEERS / "venv/bin/python", pathlib.Path(sys.executable)):
        if not python.exists():
            continue
        check = "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
        if subprocess.run([python, "-c", check, *modules]).returncode == 0:
            return [python, script]
    raise Absent(f"Python has no {' or no '.join(modules)}")


def prepare(name, path):
    """The command that runs the script."""
    scripts = [script for script in PROGRAMS.iterdir() if script.stem == name]
    if len(scripts) != 1:
        raise Failure(f"there is no program {name} in {PROGRAMS}")
    words = re.search(r"^# needs: (.*)$", scripts[0].read_text(), re.MULTILINE)
    needs = [word.strip() for word in words.group(1).split(",")] if words else []
    modules = [need.removeprefix("python:") for need in needs if need.startswith("python:")]
    for need in needs:
        if need == "root" and os.geteuid() != 0:
            raise Absent("it must be run by root")
        if need != "root" and ":" not in need and not shutil.which(need, path=path):
            raise Absent(f"there is no {need}")
    return find_interpreter(scripts[0], modules)


def check_fuse():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Absent("there is no usable /dev/fuse")
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        raise Absent("mounting needs root or fusermount3")


def check_program(arguments, folder, cleanup):
    check_fuse()
    binaries = pathlib.Path(arguments.bin).resolve()
    path = f"{binaries}:{binaries.parent / 'tests'}:{PEERS / 'bin'}:{os.environ['PATH']}"
    command = prepare(arguments.name, path)
    bucket = Bucket(binaries / "millrace", folder, cleanup)
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = bucket.environment | {"PATH": path, "SCRATCH": str(scratch), "HOME": str(scratch), "LC_ALL": "C.UTF-8",
                                        "SECONDS_MORE": str(arguments.seconds), "PYTHONDONTWRITEBYTECODE": "1"}
    seconds = STEP_SECONDS + arguments.seconds

    def step(name, mount):
        try:
            began = time.monotonic()
            run(*command, name, cwd=mount.point / "work", env=environment, seconds=seconds)
            print(f"{name}: {time.monotonic() - began:.1f} s")
        except Failure as failure:
            raise Failure(f"{failure}\nThe mount says:\n{mount.log()}") from None

    here = MOUNTS[arguments.mount](bucket, folder / "here", cleanup)
    (here.point / "work").mkdir()
    step("work", here)
    expected = describe(here.point / "work")
    if not here.publishes_on_close:
        here.stop()
    there = MOUNTS[arguments.mount](bucket, folder / "there", cleanup)
    wait_until_same(expected, there.point / "work", "on another mount")
    if here.publishes_on_close:
        here.stop()
    fetched = describe(bucket.fetch(folder / "fetched"))
    files = {name: what[2] for name, what in expected.items() if what[0] == "file"}
    if different := differences(files, {name: fetched[name][2] for name in files if name in fetched}, "in the bucket"):
        raise Failure(different)
    step("see", there)
    there.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--bin", required=True, help="where the millrace program is")
    parser.add_argument("--mount", choices=MOUNTS, default="millrace")
    parser.add_argument("--seconds", type=int, default=0, help="for programs that may take any time")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts are cleared
    try:
        with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder, \
                contextlib.ExitStack() as cleanup:
            check_program(arguments, pathlib.Path(folder), cleanup)
    except Absent as absent:
        print("skipped:", absent)
        sys.exit(SKIPPED)
    except Failure as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
