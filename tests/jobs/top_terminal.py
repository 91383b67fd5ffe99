"""Runs `millrace top` in a pseudo-terminal over a job's folder and reads the screen, as a user does.

    python3 top_terminal.py --millrace PROGRAM
"""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

PATIENCE_S = 20
RANKS = 64


def write_job(root, restarts=1):
    """A job as its supervisor and rank 0 leave it."""
    folder = root / "jobs" / "seen"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({
        "name": "seen", "state": "done", "message": "all ranks finished", "pid": 1, "attempt": 1, "restarts": restarts,
        "started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:01:00Z",
        "ranks": [{"rank": r, "pid": 1000 + r, "state": "running", "step": 40, "node": f"n{r // 8}"}
                  for r in range(RANKS)]}))
    times = {"step_s": 0.5, "data_wait_s": 0.1, "data_wait_on_s": {"network": 0.1}, "comm_wait_s": 0.05,
             "checkpoint_wait_s": 0.0}
    points = [{"first_step": s, "last_step": s, "loss": 5 - s / 10, "losses": 1, "lr": 1e-3, "grad_norm": 1.0,
               "tokens": 4096, "flops": 2e8, **times} for s in range(1, 41)]
    rank = {**times, "memory_bytes": 10**9, "busy_cores": 1.5, "stage": 0, "slowness": 1.0, "straggles": False}
    history = {
        "version": 1, "updated": time.time(), "stride": 1, "latest": points[-1], "points": points,
        "facts": {"name": "seen", "precision": "f32", "checkpoint_url": "", "ranks": RANKS, "steps": 100,
                  "parameters": 10, "global_batch": 8, "sequence_length": 512, "flops_rate": 1e9},
        "ranks": [rank] * (RANKS - 1) + [{**rank, "slowness": 2.0, "straggles": True}],
        "checkpoints": [], "evaluations": [], "starts": [{"time": 1.0, "resumed_from": 0}]}
    (folder / "history.json").write_text(json.dumps(history))


class Screen:
    """`millrace top` in a pseudo-terminal, and its last frame."""

    def __init__(self, program, env, columns, lines):
        self.control, terminal = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(terminal)
        self.terminal = terminal
        self.process = subprocess.Popen([program, "top", "seen", "--every", "100ms"], stdin=terminal, stdout=terminal,
                                        stderr=terminal, env=env, start_new_session=True)
        self.output = ""

    def resize(self, columns, lines):
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, wait):
        if select.select([self.control], [], [], wait)[0]:
            self.output += os.read(self.control, 1 << 16).decode(errors="replace")

    def frame(self):
        """The rows of the last whole frame, with colours."""
        frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.output, re.DOTALL)
        return [row.removesuffix("\x1b[K") for row in re.split(r"\r+\n", frames[-1])] if frames else []

    def text(self):
        return "\n".join(re.sub(r"\x1b\[\d*m", "", row) for row in self.frame())

    def wait_for(self, what, shown):
        end = time.monotonic() + PATIENCE_S
        while not shown(self.text()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not on the screen within {PATIENCE_S} s:\n{self.text()}")
            self.read(0.2)
        rows = self.text().split("\n")
        assert len(rows) <= self.lines, (what, len(rows))
        assert all(len(row) <= self.columns for row in rows), (what, rows)

    def press(self, keys):
        os.write(self.control, keys.encode())

    def leave(self, keys):
        self.press(keys)
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        assert self.process.poll() is not None, "it does not leave"
        self.read(0.5)
        assert "\x1b[?1049h" in self.output and self.output.rstrip().endswith("\x1b[?25h\x1b[?1049l"), self.output[-80:]
        assert termios.tcgetattr(self.terminal) == self.before, "the terminal is as it was"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.terminal)
        os.close(self.control)


def check_screen(program, env, root):
    screen = Screen(program, env, 130, 30)
    try:
        screen.wait_for("the job", lambda text: "seen  done  step 40 of 100 (40 %)" in text)
        text = screen.text()
        for shown in ("8,192 tok/s", "MFU 40 %", "loss 1.0000", "data 20 % (network)", "slower than its peers: rank 63",
                      "no checkpoints are made", "1 restart", "NODE", "ranks 0 to"):
            assert shown in text, (shown, text)
        assert any("\x1b[32m" in row for row in screen.frame()), "colours on a terminal"
        screen.press("\x1b[B")
        screen.wait_for("one rank further", lambda text: "ranks 1 to" in text)
        screen.press("\x1b[F")
        screen.wait_for("the last rank", lambda text: "to 63 of 64" in text and "slow x2.0" in text)
        screen.press("\x1b[H")
        screen.wait_for("the first rank", lambda text: "ranks 0 to" in text)
        screen.resize(40, 12)
        screen.wait_for("a narrow window", lambda text: "NODE" not in text and "RANK" in text and "q quit" in text
                        and len(text.split("\n")) == 12 and max(map(len, text.split("\n"))) <= 40)
        screen.resize(130, 30)
        write_job(root, restarts=7)
        screen.wait_for("news", lambda text: "7 restarts" in text and "NODE" in text)
        screen.leave("q")
        assert screen.process.returncode == 0, screen.process.returncode
    finally:
        screen.close()


def check_interrupt(program, env):
    screen = Screen(program, {**env, "NO_COLOR": "1"}, 80, 24)
    try:
        screen.wait_for("the job", lambda text: "seen  done" in text)
        assert not any(re.search(r"\x1b\[\d+m", row) for row in screen.frame()), "NO_COLOR"
        screen.process.send_signal(2)
        screen.leave("")
    finally:
        screen.close()


def check_once(program, env):
    plain = subprocess.run([program, "top", "seen"], env=env, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in plain and plain.count("\n") > RANKS and "slow x2.0" in plain, plain
    as_json = subprocess.run([program, "--json", "top", "seen", "--once"], env=env, capture_output=True, text=True,
                             check=True).stdout
    job = json.loads(as_json)
    assert job["tokens_per_s"] == 8192 and len(job["ranks"]) == RANKS and job["ranks"][63]["straggles"], job
    missing = subprocess.run([program, "top", "other"], env=env, capture_output=True, text=True)
    assert missing.returncode == 4 and 'no job named "other"' in missing.stderr, missing
    nothing = subprocess.run([program, "top"], env=env, capture_output=True, text=True)
    assert nothing.returncode == 2 and "no job runs on this machine" in nothing.stderr, nothing
    # The folder of log.url has the same files, and its status says where the logs are.
    folder, bucket = (pathlib.Path(env["MILLRACE_STATE_DIR"]) / name for name in ("jobs/seen", "bucket"))
    bucket.mkdir()
    shutil.copy(folder / "history.json", bucket)
    (bucket / "status.json").write_text(json.dumps({**json.loads((folder / "status.json").read_text()), "run": "r1"}))
    by_url = subprocess.run([program, "--json", "top", f"{bucket}/"], env=env, capture_output=True, text=True,
                            check=True).stdout
    assert json.loads(by_url)["ranks"] == job["ranks"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    program = parser.parse_args().millrace
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        env = {**os.environ, "MILLRACE_STATE_DIR": folder, "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        write_job(root)
        check_once(program, env)
        check_interrupt(program, env)
        check_screen(program, env, root)
    print("the view is right on the screen, in a pipe and as JSON")


if __name__ == "__main__":
    sys.exit(main())
