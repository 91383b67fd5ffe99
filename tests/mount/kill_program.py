#!/usr/bin/env python3
"""Kills the daemon of a mount while programs fill it, and lets them start again.

    kill_program.py --bin FOLDER [--rounds N] [--seed N]

Each round runs one of `cp -r`, `tar x` and `git clone` on a mount of a fresh bucket. The daemon is killed (SIGKILL) when
it sends its k-th request, k at random, which the store then gets or does not. `millrace mount --recover` and another mount
follow. What is there then must be whole; the program, run again, must reach its end and leave what it should; nothing
else may be left in the bucket or in the staging folder.

Exit status: 0 all right, 77 something is absent (the reason is printed), anything else a failure.
"""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

import run_program
from run_program import SKIPPED, Absent, Bucket, Failure, Mount, describe, differences, run


class Gate:
    """Stands between a mount and its store, counts requests, and calls `at_last` when the `last` one has come."""

    def __init__(self, port, last, forwards_last, at_last, cleanup):
        self.port, self.last, self.forwards_last, self.at_last = port, last, forwards_last, at_last
        self.count, self.lock = 0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        cleanup.callback(self.listener.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answered = threading.Event()  # what a client sends after an answer is the next request
                answered.set()
                threading.Thread(target=self.forward, args=(client, server, answered), daemon=True).start()
                threading.Thread(target=self.give_back, args=(server, client, answered), daemon=True).start()

    def forward(self, client, server, answered):
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(1 << 18):
                if answered.is_set():
                    answered.clear()
                    with self.lock:
                        self.count += 1
                        is_last = self.count == self.last
                    if is_last and not self.forwards_last:
                        self.at_last()
                        return
                    if is_last:
                        server.sendall(data)
                        self.at_last()
                        continue
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def give_back(server, client, answered):
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 18):
                answered.set()
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def make_sources(folder, seed):
    """A tree with small and large files, links and modes; a tar of it, and a repository with it."""
    rng = random.Random(seed)
    tree = folder / "tree"
    for name in ("", "a", "a/b", "c", "void"):
        (tree / name).mkdir()
    for i in range(24):
        file = tree / ("", "a", "a/b", "c")[i % 4] / f"f{i}"
        file.write_bytes(rng.randbytes(rng.choice((1, 700, 30_000, 200_000))))
        file.chmod(rng.choice((0o644, 0o755, 0o600)))
    (tree / "large").write_bytes(rng.randbytes(18_000_000))
    (tree / "empty").touch()
    (tree / "c/link").symlink_to("f3")  # tar makes placeholders of links that lead out
    run("tar", "cf", folder / "tree.tar", "-C", folder, "tree")
    repository = folder / "repository"
    shutil.copytree(tree, repository, symlinks=True)
    git = ["git", "-C", repository, "-c", "user.name=n", "-c", "user.email=e@example.org"]
    run("git", "init", "-q", repository)
    run(*git, "add", ".")
    run(*git, "commit", "-qm", "first")


PROGRAMS = {
    "cp": ["cp", "-r", "{sources}/tree", "."],
    "tar": ["tar", "xf", "{sources}/tree.tar"],
    "git": ["git", "clone", "-q", "--no-hardlinks", "{sources}/repository", "cloned"],
}


def daemon_of(point):
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"--status-fd" in words and os.fsencode(point) in words:
                return int(process.name)
    raise Failure(f"no daemon serves {point}")


def visible(folder):
    """What a program has made; of a clone, what is checked out, for git's own files tell times."""
    return {name: what for name, what in describe(folder).items() if ".git" not in pathlib.Path(name).parts}


class Round:
    def __init__(self, millrace, sources, folder, cleanup, name, flags):
        self.millrace, self.folder, self.cleanup, self.flags = millrace, folder, cleanup, flags
        self.name, self.command = name, [word.format(sources=sources) for word in PROGRAMS[name]]
        self.bucket = Bucket(millrace, folder, cleanup, "--anonymous")
        self.endpoint = self.bucket.environment["AWS_ENDPOINT_URL"]

    def mount(self, endpoint):
        self.bucket.environment["AWS_ENDPOINT_URL"] = endpoint
        return Mount(self.bucket, self.folder / "mount", self.cleanup, *self.flags)

    def work(self, mount):
        # Not with cwd=: Python's vfork keeps its lock until the child has changed folder, which the mount may ask its store
        # for through our gate, whose threads wait for that lock.
        return subprocess.run(["env", "-C", mount.point, *self.command], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=100, env=mount.environment | {"LC_ALL": "C.UTF-8"})

    def requests(self):
        """How many it takes."""
        gate = Gate(int(self.endpoint.rsplit(":", 1)[1]), 0, True, None, self.cleanup)
        mount = self.mount(gate.address)
        mounted = gate.count
        worked = self.work(mount)
        if worked.returncode != 0:
            raise Failure(worked.stderr.decode())
        mount.stop()
        return mounted, gate.count

    def kill_and_go_on(self, expected, last, forwards_last):
        pid = []
        killed = threading.Event()

        def kill():
            os.kill(pid[0], signal.SIGKILL)
            killed.set()

        gate = Gate(int(self.endpoint.rsplit(":", 1)[1]), last, forwards_last, kill, self.cleanup)
        mount = self.mount(gate.address)
        pid.append(daemon_of(mount.point))
        first = self.work(mount)
        if first.returncode != 0:  # the program may see the end before the thread that kills goes on
            killed.wait(60)
        if not killed.is_set():  # it was to die while it published what it had staged
            if first.returncode != 0:
                raise Failure(first.stderr.decode())
            subprocess.run([self.millrace, "umount", mount.point], env=mount.environment, capture_output=True)
        mount.clear()
        gate.last = 0
        run(self.millrace, "mount", "s3://bucket", "--recover", env=mount.environment)
        if uploads := self.uploads():
            raise Failure(f"uploads are left: {uploads}")
        mount = self.mount(gate.address)
        self.see_whole(expected, mount.point)
        if first.returncode == 0 and (different := differences(expected, visible(mount.point), "after the kill")):
            raise Failure("the program had reached its end\n" + different)
        if self.name == "git" and first.returncode != 0:
            run("rm", "-rf", mount.point / "cloned")
        if self.name != "git" or first.returncode != 0:
            worked = self.work(mount)
            if worked.returncode != 0:
                raise Failure(f"{self.command} again: {worked.stderr.decode()}\n{mount.log()}")
        if different := differences(expected, visible(mount.point), "on the mount"):
            raise Failure(different)
        if self.name == "git":
            run("git", "-C", mount.point / "cloned", "fsck", "--strict")
        mount.stop()
        self.see_bucket(expected)

    def see_whole(self, expected, point):
        """Nothing of a file appears before all of it does. (git writes its files as it likes.)"""
        if self.name == "git":
            return
        for name, (kind, _, content) in visible(point).items():
            if name not in expected or (kind, content) != expected[name][::2]:
                raise Failure(f"after the kill {name} is {kind} {content}, not {expected.get(name)}")

    def see_bucket(self, expected):
        fetched = self.folder / "fetched"
        self.bucket.call("sync", "s3://bucket/", f"{fetched}/", "--quiet")
        files = {name: what[2] for name, what in expected.items() if what[0] == "file"}
        got = {name: what[2] for name, what in visible(fetched).items() if what[0] == "file"}
        links = {name for name, what in expected.items() if what[0] == "link"}
        got = {name: content for name, content in got.items() if name not in links | {".millrace/root"}}
        if different := differences(files, got, "in the bucket"):
            raise Failure(different)
        if uploads := self.uploads():
            raise Failure(f"uploads are left: {uploads}")
        staged = [path for path in self.folder.rglob("staging/[0-9a-f]*") if path.stat().st_size > 0]
        if staged:
            raise Failure(f"something is left staged: {staged}")

    def uploads(self):
        with urllib.request.urlopen(self.endpoint + "/bucket?uploads") as answer:
            text = answer.read().decode()
        return [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]


def check(arguments, folder):
    run_program.check_fuse()
    for program in ("git", "tar"):
        if not shutil.which(program):
            raise Absent(f"there is no {program}")
    millrace = pathlib.Path(arguments.bin).resolve() / "millrace"
    sources = folder / "sources"
    sources.mkdir()
    make_sources(sources, arguments.seed)
    rng = random.Random(arguments.seed)
    counts, expected = {}, {}
    for number in range(arguments.rounds):
        name = list(PROGRAMS)[number % len(PROGRAMS)]
        flags = ["--close=async"] if number // len(PROGRAMS) % 2 else []
        kind = (name, *flags)

        def begin(what):
            (place := folder / f"{what}{number}").mkdir()
            return Round(millrace, sources, place, cleanup, name, flags)

        with contextlib.ExitStack() as cleanup:
            if kind not in counts:
                counts[kind] = begin("count").requests()
                (locally := folder / f"locally{number}").mkdir()
                run(*(word.format(sources=sources) for word in PROGRAMS[name]), cwd=locally)
                expected[kind] = visible(locally)
            mounted, total = counts[kind]
            last, forwards_last = rng.randint(mounted + 1, total), rng.random() < 0.5
            what = f"{' '.join(kind)}, killed at request {last} of {total}, {'sent' if forwards_last else 'not sent'}"
            try:
                begin("round").kill_and_go_on(expected[kind], last, forwards_last)
            except Failure as failure:
                raise Failure(f"round {number}: {what}:\n{failure}") from None
            print(f"round {number}: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where the millrace program is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts are cleared
    try:
        with tempfile.TemporaryDirectory(prefix="kill-", ignore_cleanup_errors=True) as folder:
            check(arguments, pathlib.Path(folder))
    except Absent as absent:
        print("skipped:", absent)
        sys.exit(SKIPPED)
    except Failure as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
