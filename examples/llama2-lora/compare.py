"""The article's fine-tune twice from the same bytes of a bucket: by trl and PEFT through a mount, and by `millrace train`.

    python compare.py [BIN_FOLDER] [--steps 20] [--load-in-4bit] [--threads 2] [--json]

The Python that runs this has the packages of sft.py. Everything else is made here: an S3 endpoint, the data, a small
Llama with random weights. Both sides begin with the same adapter, which trl made, and have the same samples in the same
order, without dropout. Prints both losses of some steps, and speed and memory side by side. The exit status is 1 if a
loss differs by more than 1e-4 of its value.
"""
import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUCKET = "s3://llama2"
DATA = "openassistant-guanaco-train.arrow"
VOCABULARY = 1024
LOSS_TOLERANCE = 1e-4  # relative: both compute in float32 and add in different orders
WARM_UP_STEPS = 2      # are left out of the speed
LINES = 7              # of the table of losses


class Failed(Exception):
    """A command that failed, or a claim that did not hold."""


@dataclasses.dataclass
class Side:
    """What one of the two programs did."""
    name: str
    steps: list[dict]  # with step, loss, step_s
    peak_bytes: int    # of its largest process
    seconds: float     # from start to end

    def loss(self, step: int) -> float:
        return self.steps[step]["loss"]


class Comparison:
    def __init__(self, arguments: argparse.Namespace, folder: pathlib.Path, children: contextlib.ExitStack):
        self.arguments, self.folder, self.children = arguments, folder, children
        self.millrace = str(arguments.programs.resolve() / "millrace")
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith(("AWS_", "MILLRACE_")) or name == "MILLRACE_CLEANUP_ID"}
        self.env |= {"HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(folder / "cache"),
                     "MILLRACE_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": str(arguments.threads),
                     "TOKENIZERS_PARALLELISM": "false"}

    def say(self, text: str) -> None:
        if not self.arguments.json:
            print(text, flush=True)

    def run(self, *command) -> str:
        done = subprocess.run([str(word) for word in command], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def measure(self, *command) -> tuple[str, int, float]:
        """Returns what a command printed, the peak memory of its largest process in bytes, and its seconds."""
        began = time.monotonic()
        with (self.folder / "measured.log").open("w+", encoding="utf-8") as log:
            child = subprocess.Popen([str(word) for word in command], env=self.env, stdout=subprocess.PIPE, stderr=log,
                                     text=True)
            output = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0:
                log.seek(0)
                raise Failed(f"{' '.join(map(str, command))}: exit status {child.returncode}\n{output}{log.read()}")
        return output, usage.ru_maxrss * 1024, time.monotonic() - began

    def start_endpoint(self) -> None:
        port = self.folder / "port"
        keys = {"MILLRACE_S3D_ACCESS_KEY": "llama2", "MILLRACE_S3D_SECRET_KEY": os.urandom(16).hex()}
        server = subprocess.Popen([self.millrace, "s3d", "--root", self.folder / "s3", "--port-file", port],
                                  env=self.env | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.callback(lambda: (server.terminate(), server.wait()))
        until = time.monotonic() + 30
        while not (port.exists() and port.read_text().strip()):
            if server.poll() is not None or time.monotonic() > until:
                raise Failed("millrace s3d did not start")
            time.sleep(0.02)
        self.env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.read_text().strip()}", "AWS_REGION": "us-east-1",
                     "AWS_ACCESS_KEY_ID": keys["MILLRACE_S3D_ACCESS_KEY"],
                     "AWS_SECRET_ACCESS_KEY": keys["MILLRACE_S3D_SECRET_KEY"], "AWS_CONFIG_FILE": "/dev/null",
                     "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}

    def fill_bucket(self) -> None:
        """Puts the data and the model into the bucket."""
        self.run(self.millrace, "mb", BUCKET)
        self.say(self.run(sys.executable, HERE / "guanaco.py", ROOT / "docs", self.folder / DATA).strip())
        self.run(self.millrace, "cp", self.folder / DATA, f"{BUCKET}/{DATA}")
        tokenizer, model = self.folder / "tokenizer" / "tokenizer.model", self.folder / "small-llama"
        tokenizer.parent.mkdir()
        self.run(self.millrace, "tokenizer", "train", "--input", f"{BUCKET}/{DATA}", "--vocab-size", VOCABULARY,
                 "--output", tokenizer)
        self.say(self.run(sys.executable, HERE / "small_llama.py", tokenizer, model).strip())
        self.run(self.millrace, "sync", f"{model}/", f"{BUCKET}/small-llama/")
        if self.arguments.load_in_4bit:
            # Both sides read the same codes: a scale that one library rounds up and the other one down changes losses.
            self.run(self.millrace, "ckpt", "export", f"{BUCKET}/small-llama", f"{BUCKET}/small-llama-nf4", "--quantize",
                     "nf4")
            for name in ("tokenizer.json", "tokenizer_config.json"):
                self.run(self.millrace, "cp", model / name, f"{BUCKET}/small-llama-nf4/")

    def model(self) -> str:
        return "small-llama-nf4" if self.arguments.load_in_4bit else "small-llama"

    def train_with_trl(self) -> Side:
        mount, log = self.folder / "mnt", self.folder / "steps.jsonl"
        mount.mkdir()
        self.run(self.millrace, "mount", BUCKET, mount)
        try:
            if hashlib.sha256((mount / DATA).read_bytes()).digest() != hashlib.sha256(
                    (self.folder / DATA).read_bytes()).digest():
                raise Failed(f"{mount / DATA} is not what was put into the bucket")
            _, peak, seconds = self.measure(
                sys.executable, HERE / "sft.py", mount, "--model", self.model(), "--max-steps", self.arguments.steps,
                "--log", log)
        finally:
            self.run(self.millrace, "umount", mount)
        return Side("trl and PEFT, mount", [json.loads(line) for line in log.read_text().splitlines()], peak, seconds)

    def train_with_millrace(self) -> Side:
        lora = {"adapter": f"{BUCKET}/runs/adapter-start/"}
        if self.arguments.load_in_4bit:
            lora["base"] = "nf4"
        output, peak, seconds = self.measure(
            self.millrace, "train", HERE / "job.yaml", "--json", "--set", f"lora={json.dumps(lora)}",
            "--set", f"train.steps={self.arguments.steps}", "--set", f"train.threads={self.arguments.threads}",
            "--set", "log.every_steps=1", "--set", f"model.from={BUCKET}/{self.model()}/")
        steps = [line for line in map(json.loads, output.splitlines()) if "event" not in line]
        return Side("millrace train, s3://", steps, peak, seconds)


def table(theirs: Side, ours: Side, load_in_4bit: bool) -> tuple[str, dict]:
    """Returns the comparison for people and for programs."""
    last = len(theirs.steps) - 1
    differences = [abs(ours.loss(i) - theirs.loss(i)) / theirs.loss(i) for i in range(len(theirs.steps))]
    shown = sorted({round(i * last / (LINES - 1)) for i in range(LINES)})
    lines = [f"weights of {'4' if load_in_4bit else '32'} bits", "",
             f"{'':<24} {theirs.name:>22} {ours.name:>22} {'difference':>12}"]
    for i in shown:
        lines.append(f"{f'loss of step {i + 1}':<24} {theirs.loss(i):>22.6f} {ours.loss(i):>22.6f} {differences[i]:>12.1e}")
    # Both have trained on the same tokens, so padding, of which millrace has more, counts for neither.
    timed = range(min(WARM_UP_STEPS, last), last + 1)
    tokens = sum(theirs.steps[i]["tokens"] for i in timed)
    speeds = [tokens / sum(side.steps[i]["step_s"] for i in timed) for side in (theirs, ours)]
    values = {"steps": len(theirs.steps), "losses": {side.name: [step["loss"] for step in side.steps]
                                                     for side in (theirs, ours)}, "largest_difference": max(differences)}
    for name, form, pair in (("tokens/s", ",.0f", speeds),
                             ("peak memory, MB", ",.0f", [side.peak_bytes / 1e6 for side in (theirs, ours)]),
                             ("whole run, s", ".1f", [side.seconds for side in (theirs, ours)])):
        lines.append(f"{name:<24} {format(pair[0], form):>22} {format(pair[1], form):>22} {pair[1] / pair[0]:>11.2f}x")
        values[name] = pair
    lines.append(f"\nlargest relative difference of a loss in {last + 1} steps: {max(differences):.1e}")
    return "\n".join(lines), values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="?", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--load-in-4bit", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llama2-lora-") as folder, contextlib.ExitStack() as children:
        comparison = Comparison(arguments, pathlib.Path(folder), children)
        try:
            comparison.start_endpoint()
            comparison.fill_bucket()
            theirs = comparison.train_with_trl()
            ours = comparison.train_with_millrace()
        except Failed as failure:
            print(f"compare: {failure}", file=sys.stderr)
            return 1
        if len(theirs.steps) != arguments.steps or len(ours.steps) != arguments.steps:
            print(f"compare: {len(theirs.steps)} and {len(ours.steps)} steps", file=sys.stderr)
            return 1
        text, values = table(theirs, ours, arguments.load_in_4bit)
        print(json.dumps(values) if arguments.json else f"\n{text}")
        return 0 if values["largest_difference"] <= LOSS_TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
