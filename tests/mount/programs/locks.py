"""Processes of one host that take turns by flock and fcntl, and append to one log."""
import fcntl
import os
import subprocess
import sys

WORKERS, ROUNDS = 4, 25


def worker(kind, name):
    lock = os.open(f"{kind}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    take = fcntl.flock if kind == "flock" else fcntl.lockf
    for _ in range(ROUNDS):
        take(lock, fcntl.LOCK_EX)
        with open(f"{kind}.count", "r+") as counter:
            value = int(counter.read() or "0") + 1
            counter.seek(0)
            counter.write(str(value))
            counter.truncate()
        take(lock, fcntl.LOCK_UN)
        with open(f"{kind}.log", "a") as log:
            log.write(f"{name}\n")


if sys.argv[1] == "work":
    for kind in ("flock", "fcntl"):
        for name in (f"{kind}.count", f"{kind}.log"):
            open(name, "w").close()
        workers = [subprocess.Popen([sys.executable, __file__, "worker", kind, str(i)]) for i in range(WORKERS)]
        assert [w.wait() for w in workers] == [0] * WORKERS
        assert open(f"{kind}.count").read() == str(WORKERS * ROUNDS), open(f"{kind}.count").read()
        lines = open(f"{kind}.log").read().split("\n")
        assert len(lines) == WORKERS * ROUNDS + 1, f"{len(lines) - 1} lines of appends"
    with open("flock.lock") as first, open("flock.lock") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise SystemExit("two have the lock")
        except BlockingIOError:
            pass
elif sys.argv[1] == "worker":
    worker(*sys.argv[2:])
else:
    assert open("flock.count").read() == str(WORKERS * ROUNDS)
