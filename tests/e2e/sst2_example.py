"""Runs the jobs of examples/sst2 on local files: both models judge sentences that they never saw far better than by chance.

    python3 sst2_example.py BIN_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Half of the sentences are of either class. One word alone decides 70 % of them: "not" turns the others.
LEAST = 0.9


def main(programs: pathlib.Path) -> None:
    example = ROOT / "examples/sst2"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        subprocess.run([sys.executable, example / "sentences.py", folder / "SST-2"], check=True)
        env = dict(os.environ, MILLRACE_STATE_DIR=str(folder / "state"))
        for name in ("bert", "gpt2"):
            job = (example / f"{name}.yaml").read_text().replace("s3://corpus", str(folder))
            (folder / "job.yaml").write_text(job.replace("s3://runs", str(folder / "runs")))
            done = subprocess.run([programs / "millrace", "train", folder / "job.yaml", "--json"], env=env, check=True,
                                  stdout=subprocess.PIPE, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            evals = [line for line in lines if line.get("event") == "eval"]
            assert evals and evals[-1]["samples"] == 400, lines[-3:]
            print(name, [f"step {line['step']}: {line['accuracy']:.3f}" for line in evals], flush=True)
            assert evals[-1]["accuracy"] >= LEAST, evals


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
