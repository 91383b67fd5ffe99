"""Runs examples/llama2-lora/compare.py for a few steps: trl's losses through a mount are those of `millrace train`.

    python3 llama2_lora_example.py BIN_FOLDER

Runs it in $MILLRACE_PEERS/venv, with trl from $MILLRACE_PEERS/trainers (tests/install-peers FOLDER torch trainers). Exit
status: 0 both sides agree, 77 something is missing (named), 1 otherwise.
"""
import json
import math
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"))
PACKAGES = ["torch", "transformers", "datasets", "peft", "trl", "sentencepiece", "bitsandbytes"]
STEPS, VOCABULARY = 8, 1024
LOSS_TOLERANCE = 1e-4  # compare.py has checked it too; a test must not depend on that
SKIPPED = 77


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main(programs: pathlib.Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("no /dev/fuse here")
    if not list(programs.glob("../lib/millrace/*_arrow.so")):
        skip("built without Arrow")
    python = PEERS / "venv/bin/python"
    if not python.exists():
        skip(f"no Python in MILLRACE_PEERS/venv ({python})")
    env = dict(os.environ, PYTHONPATH=str(PEERS / "trainers"))
    found = subprocess.run([python, "-c", f"""
from importlib.util import find_spec
print(*[name for name in {PACKAGES} if find_spec(name) is None])"""], env=env, check=True, capture_output=True, text=True)
    if found.stdout.strip():
        skip(f"not in MILLRACE_PEERS: {found.stdout.strip()}")
    for bits, options in ((32, []), (4, ["--load-in-4bit"])):
        done = subprocess.run([python, ROOT / "examples/llama2-lora/compare.py", programs, "--steps", str(STEPS),
                               "--threads", "1", "--json", *options], env=env, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"compare.py ended with {done.returncode}: {done.stdout}"
        values = json.loads(done.stdout)
        theirs, ours = values["losses"].values()
        assert len(theirs) == len(ours) == STEPS, values
        difference = max(abs(a - b) / b for a, b in zip(ours, theirs))
        print(f"{bits} bits: loss {ours[0]:.6f} -> {ours[-1]:.6f}; largest relative difference {difference:.1e}; tokens/s "
              f"{values['tokens/s']}, peak memory in MB {values['peak memory, MB']}", flush=True)
        assert difference <= LOSS_TOLERANCE, (theirs, ours)
        # The first model knows nothing; different samples would have losses that differ by more than the tolerance.
        assert abs(ours[0] - math.log(VOCABULARY)) < 0.2 and ours[-1] < ours[0] - 0.05, "it learns nothing"
        assert all(value > 0 for name in ("tokens/s", "peak memory, MB", "whole run, s") for value in values[name])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
