"""A log that is appended to, followed by a reader, and rotated."""
import logging
import logging.handlers
import os
import subprocess
import sys

LINES = 300
if sys.argv[1] == "work":
    open("app.log", "w").close()
    follower = subprocess.Popen(["tail", "-n", "+1", "-F", "app.log"], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)
    with open("app.log", "a") as log:
        for i in range(LINES):
            log.write(f"line {i} {'x' * (i % 50)}\n")
            log.flush()
            if i % 50 == 0:
                os.fsync(log.fileno())
                assert open("app.log").read().count("\n") == i + 1
    for i in range(LINES):
        assert follower.stdout.readline().startswith(f"line {i} "), i
    follower.kill()
    follower.wait()
    logger = logging.getLogger()
    handler = logging.handlers.RotatingFileHandler("rotating.log", maxBytes=2000, backupCount=3)
    logger.addHandler(handler)
    for i in range(200):
        logger.warning("message %d of a program that rotates its log", i)
    handler.close()
    assert sorted(name for name in os.listdir() if name.startswith("rot")) == [
        "rotating.log", "rotating.log.1", "rotating.log.2", "rotating.log.3"]
else:
    assert open("app.log").read().count("\n") == LINES
    lines = "".join(open(f"rotating.log{n}").read() for n in (".3", ".2", ".1", "")).splitlines()
    assert lines[-1].startswith("message 199 ") and len(lines) > 100
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(numbers[0], 200))
