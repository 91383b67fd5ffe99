"""The whole data path on real text, on this machine: bucket, mount, tokenizer, training on two ranks, a killed rank, an
exact resume, verified checkpoints, served completions. Every claim is checked; the exit status tells whether all held.

    make demo                                  (or: python3 examples/demo/demo.py [BIN_FOLDER])
"""
import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from picture import run_picture

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = ROOT / "build/demo"  # artefacts of the last run
KILL_AFTER_STEP = 60
REFERENCE_STEPS = 70
MAX_LOSS = 5.7


class Failed(Exception):
    """A claim of the demo that did not hold."""


class Demo:
    def __init__(self, programs: pathlib.Path):
        self.millrace = str(programs / "millrace")
        self.env = dict(os.environ)
        self.table: list[tuple[str, str]] = []
        self.started = time.monotonic()
        self.children = contextlib.ExitStack()

    # -- helpers ---------------------------------------------------------------------------------------------------

    def stage(self, number: int, title: str) -> None:
        print(f"\n[{number}/8] {title}  ({time.monotonic() - self.started:.0f} s)", flush=True)

    def say(self, text: str) -> None:
        print(f"      {text}", flush=True)

    def claim(self, holds: bool, text: str) -> None:
        print(f"      {'ok  ' if holds else 'FAIL'} {text}", flush=True)
        if not holds:
            raise Failed(text)

    def note(self, name: str, value: str) -> None:
        self.table.append((name, value))

    def run(self, *args: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess:
        done = subprocess.run([self.millrace, *args], env=self.env, capture_output=True, text=True, input=text)
        if check and done.returncode != 0:
            raise Failed(f"millrace {' '.join(args)}: exit status {done.returncode}\n{done.stderr.strip()}")
        return done

    def run_json(self, *args: str) -> list[dict]:
        return [json.loads(line) for line in self.run(*args, "--json").stdout.splitlines()]

    def start(self, *args: str, log: str, **options) -> subprocess.Popen:
        """A child that is ended, at the latest, when the demo ends."""
        log_file = (HOME / "logs" / log).open("w")
        child = subprocess.Popen([self.millrace, *args], env=self.env, stderr=log_file, **options)

        def stop():
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            log_file.close()
        self.children.callback(stop)
        return child

    def wait_for_port(self, child: subprocess.Popen, port_file: pathlib.Path, seconds: float) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if port_file.exists() and port_file.read_text().strip():
                return int(port_file.read_text())
            if child.poll() is not None:
                raise Failed(f"{child.args[1]} ended with {child.returncode}; see {HOME}/logs")
            time.sleep(0.02)
        raise Failed(f"{child.args[1]} did not open its port within {seconds} s")

    # -- stages ----------------------------------------------------------------------------------------------------

    def endpoint(self) -> None:
        self.stage(1, "an S3 endpoint of our own")
        key, secret = secrets.token_hex(10).upper(), secrets.token_hex(20)
        for name in [n for n in self.env if n.startswith(("AWS_", "MILLRACE_")) and n != "MILLRACE_CLEANUP_ID"]:
            del self.env[name]
        self.env |= {"MILLRACE_S3D_ACCESS_KEY": key, "MILLRACE_S3D_SECRET_KEY": secret}
        port_file = HOME / "s3d.port"
        server = self.start("s3d", "--root", str(HOME / "s3"), "--port-file", str(port_file), log="s3d.log",
                            stdout=subprocess.DEVNULL)
        port = self.wait_for_port(server, port_file, 10)
        del self.env["MILLRACE_S3D_ACCESS_KEY"], self.env["MILLRACE_S3D_SECRET_KEY"]
        self.env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1",
                     "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_CONFIG_FILE": "/dev/null",
                     "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
                     "MILLRACE_STATE_DIR": str(HOME / "state")}
        self.run("mb", "s3://demo")
        self.say(f"http://127.0.0.1:{port}, bucket s3://demo, data in {HOME / 's3'}")

    def corpus(self) -> None:
        self.stage(2, "real text into the bucket")
        made = subprocess.run([sys.executable, HERE / "corpus.py", HOME / "corpus"], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        files = [json.loads(line) for line in made.splitlines()]
        for file in files:
            self.say(f"{file['file']:<18} {file['records']:>6} records  {file['bytes'] / 1e6:6.1f} MB")
        total = sum(file["bytes"] for file in files)
        self.claim(total >= 10e6, f"{total / 1e6:.1f} MB of text")
        began = time.monotonic()
        self.run("sync", f"{HOME / 'corpus'}/", "s3://demo/corpus/")
        seconds = time.monotonic() - began
        stored = {o["key"].rsplit("/", 1)[-1]: o["size"] for o in self.run_json("ls", "s3://demo/corpus/")}
        self.claim(stored == {f["file"]: f["bytes"] for f in files}, "every file is in the bucket, with its size")
        again = self.run_json("sync", f"{HOME / 'corpus'}/", "s3://demo/corpus/")
        self.claim(not any(o.get("source") for o in again), "a second sync has nothing to do")
        self.note("uploaded", f"{len(files)} objects, {total / 1e6:.1f} MB, {total / 1e6 / seconds:.0f} MB/s")

    def tokenizer(self) -> None:
        self.stage(3, "a tokenizer of 4,096 pieces")
        began = time.monotonic()
        self.run("tokenizer", "train", "--input", "s3://demo/corpus/*.jsonl", "--template", "{title}\n\t\t{text}\n\n",
                 "--vocab-size", "4096", "--output", "s3://demo/tokenizer.model")
        seconds = time.monotonic() - began
        sentence = "The generator expression is 空 on other systems."
        ids = json.loads(self.run("tokenizer", "encode", "--model", "s3://demo/tokenizer.model", "--json",
                                  text=json.dumps({"text": sentence}) + "\n").stdout)["ids"]
        back = json.loads(self.run("tokenizer", "decode", "--model", "s3://demo/tokenizer.model", "--json",
                                   text=json.dumps({"ids": ids}) + "\n").stdout)["text"]
        self.claim(back == sentence, f"trained in {seconds:.1f} s; “{sentence}” is {len(ids)} tokens and back")

    def mount(self) -> None:
        self.stage(4, "the bucket as a file tree")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            self.say("no /dev/fuse here: the mount is left out; everything else streams from s3:// anyway")
            self.note("mount", "left out: no /dev/fuse")
            return
        mnt = HOME / "mnt"
        mnt.mkdir()
        self.run("mount", "s3://demo", str(mnt))
        try:
            local = HOME / "corpus/manual.jsonl"
            count = subprocess.run(["grep", "-c", "add_library", mnt / "corpus/manual.jsonl"], capture_output=True, text=True)
            expected = sum("add_library" in line for line in local.open(encoding="utf-8"))
            self.claim(int(count.stdout) == expected, f"grep -c add_library: {expected} lines")
            subprocess.run(["cp", local, mnt / "copy.jsonl"], check=True)
            subprocess.run(["mv", mnt / "copy.jsonl", mnt / "moved.jsonl"], check=True)
            names = sorted(os.listdir(mnt))
            self.claim("moved.jsonl" in names and "copy.jsonl" not in names, f"cp and mv: {' '.join(names)}")
            began = time.monotonic()
            read = (mnt / "moved.jsonl").read_bytes()
            self.claim(hashlib.sha256(read).digest() == hashlib.sha256(local.read_bytes()).digest(),
                       f"Python reads the same {len(read) / 1e6:.1f} MB back, "
                       f"{len(read) / 1e6 / (time.monotonic() - began):.0f} MB/s")
            os.remove(mnt / "moved.jsonl")
        finally:
            self.run("umount", str(mnt))
        self.claim(not os.path.ismount(mnt) and not os.listdir(mnt), "unmounted")
        self.note("mount", "grep, cp, mv, Python read: right")

    def train(self) -> None:
        self.stage(5, "training on two ranks, streaming from the bucket")
        run = Training(self, "demo", [])
        run.follow(kill_after=KILL_AFTER_STEP)
        self.claim(run.exit_status == 0, f"the job ended well ({run.last_step} steps in {run.seconds:.0f} s)")
        first, last = run.steps[0]["loss"], sum(s["loss"] for s in run.steps[-10:]) / 10
        self.claim(8.0 < first < 8.7, f"loss begins at {first:.3f} (ln 4096 = 8.318)")
        self.claim(last < MAX_LOSS, f"loss ends at {last:.3f} (mean of ten steps), below {MAX_LOSS}")
        tokens = sum(s["tokens"] for s in run.steps) / max(1e-9, sum(s["step_s"] for s in run.steps))
        step_s = sum(s["step_s"] for s in run.steps)
        self.note("trained", f"{run.last_step} steps, loss {first:.2f} to {last:.2f}, {tokens:,.0f} tokens/s")
        self.note("waited for data", f"{100 * sum(s['data_wait_s'] for s in run.steps) / step_s:.2f} % of the time")
        saves = [e for e in run.events if e["event"] == "checkpoint"]
        stalls = [s["checkpoint_wait_s"] for s in run.steps if s["checkpoint_wait_s"] > 0]
        self.claim(len(saves) >= 4, f"{len(saves)} checkpoints committed")
        self.note("checkpoints", f"{len(saves)} committed, training held up {1e3 * max(stalls, default=0):.1f} ms at most")
        events = [o for o in self.run_json("ls", "s3://demo/runs/demo/tb/") if "tfevents" in o["key"]]
        self.claim(len(events) >= 1, f"{len(events)} TensorBoard event files in the bucket")

        self.stage(6, "a rank was killed: was the resume exact?")
        self.claim(run.restart is not None, f"rank 1 was killed by SIGKILL after step {run.killed_after}")
        self.claim(run.noticed_s < 2, f"the supervisor noticed within {1e3 * run.noticed_s:.0f} ms")
        self.say(f"training went on from the checkpoint of step {run.resumed_from}, "
                 f"{run.resume_s:.1f} s after the kill")
        self.note("killed and resumed", f"after step {run.killed_after}, from step {run.resumed_from}, in {run.resume_s:.1f} s")
        self.say(f"an undisturbed reference over the first {REFERENCE_STEPS} steps:")
        reference = Training(self, "demo-reference", ["checkpoint.url=''", "log.tensorboard=''"])
        reference.follow(stop_after=REFERENCE_STEPS)
        losses = {s["step"]: s["loss"] for s in reference.steps}
        compared = [s for s in run.steps if s["step"] in losses]
        different = [s["step"] for s in compared if s["loss"] != losses[s["step"]]]
        self.claim(len(losses) >= REFERENCE_STEPS and not different,
                   f"all {len(compared)} losses of steps 1 to {max(losses)} equal it bit for bit, the repeated ones too"
                   if not different else f"losses differ at steps {different[:10]}")
        picture = HOME / "run.svg"
        picture.write_text(run_picture([(s["step"], s["loss"]) for s in run.steps], run.killed_after, run.resumed_from,
                                       f"make demo: Llama, 2 ranks, {tokens:,.0f} tokens/s; a rank killed, an exact resume"))

    def serve(self) -> None:
        self.stage(7, "verified checkpoints, served")
        verified = self.run_json("ckpt", "verify", "s3://demo/runs/demo")[-1]
        self.claim(verified["bytes"] > 0, f"ckpt verify: {verified['chunks']} chunks, {verified['bytes'] / 1e6:.1f} MB, all right")
        port_file = HOME / "serve.port"
        server = self.start("serve", "--model", "s3://demo/runs/demo", "--listen", "127.0.0.1:0", "--port-file",
                            str(port_file), log="serve.log", stdout=subprocess.DEVNULL)
        port = self.wait_for_port(server, port_file, 60)
        prompt = "add_library (1)\n\t\tAdd a library"
        # No end of the text (</s>): whether this seed draws one at once depends on how the processor rounds in training.
        body = {"model": "demo", "prompt": prompt, "max_tokens": 48, "temperature": 0.7, "top_p": 0.9, "seed": 7,
                "logit_bias": {"2": -100}, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        text, pieces, finished = "", 0, False
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data: "):
                    for choice in json.loads(line[6:]).get("choices", []):
                        text += choice["text"]
                        pieces += bool(choice["text"])
        self.claim(finished and pieces > 5, f"/v1/completions streamed {pieces} pieces:")
        print("\n".join(f"        | {line}" for line in (prompt + text).splitlines()), flush=True)

    def summary(self) -> None:
        self.stage(8, "figures")
        objects = self.run_json("ls", "--recursive", "s3://demo/")
        self.note("in the bucket", f"{len(objects)} objects, {sum(o['size'] for o in objects) / 1e6:.1f} MB")
        self.note("artefacts", f"{HOME} (s3/ logs/ run.svg)")
        self.note("whole demo", f"{time.monotonic() - self.started:.0f} s")
        for name, value in self.table:
            print(f"      {name:<20} {value}")


class Training:
    """One `millrace job run`, followed line by line."""

    def __init__(self, demo: Demo, name: str, settings: list[str]):
        self.demo, self.name = demo, name
        self.steps: list[dict] = []
        self.events: list[dict] = []
        self.restart: dict | None = None
        self.killed_after = self.resumed_from = self.last_step = 0
        self.noticed_s = self.resume_s = self.seconds = 0.0
        self.exit_status: int | None = None
        assignments = [word for s in [f"name={name}", *settings] for word in ("--set", s)]
        self.child = demo.start("job", "run", str(HERE / "job.yaml"), *assignments, "--json", log=f"{name}.log",
                                stdout=subprocess.PIPE, text=True)

    def follow(self, kill_after: int = 0, stop_after: int = 0) -> None:
        began, killed = time.monotonic(), 0.0
        for line in self.child.stdout:
            record = json.loads(line)
            if "event" in record:
                self.events.append(record)
                if record["event"] == "plan":
                    self.demo.say(f"plan: {record.get('samples_per_epoch', '?')} samples, "
                                  f"{record.get('parameters', 0) / 1e6:.1f} M parameters")
                if record["event"] == "restart":
                    self.restart, self.noticed_s = record, time.monotonic() - killed
                    self.demo.say(f"restart: {record.get('reason', '')}")
                continue
            self.steps.append(record)
            step = self.last_step = record["step"]
            if killed and self.restart and not self.resumed_from:
                self.resumed_from, self.resume_s = step - 1, time.monotonic() - killed
            if step % 50 == 0 or step == 1:
                parts = step_line(record)
                self.demo.say(parts)
            if kill_after and not killed and step >= kill_after:
                self.killed_after, killed = step, time.monotonic()
                os.kill(self.rank_pid(1), signal.SIGKILL)
            if stop_after and step >= stop_after:
                self.child.terminate()
                stop_after = 0
        self.exit_status = self.child.wait()
        self.seconds = time.monotonic() - began

    def rank_pid(self, rank: int) -> int:
        status = self.demo.run_json("job", "status", self.name)[-1]
        return next(r["pid"] for r in status["ranks"] if r["rank"] == rank)


def step_line(record: dict) -> str:
    share = lambda key: 100 * record[key] / max(1e-9, record["step_s"])  # noqa: E731
    return (f"step {record['step']:>4}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  grad {record['grad_norm']:.2f}  "
            f"{record['tokens_per_s']:>7,.0f} tok/s  waits: data {share('data_wait_s'):.1f} %, "
            f"checkpoint {share('checkpoint_wait_s'):.1f} %")


def main() -> int:
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin").resolve()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in ("s3", "logs", "state", "mnt", "corpus"):
        shutil.rmtree(HOME / name, ignore_errors=True)
    for name in ("s3d.port", "serve.port", "run.svg"):
        (HOME / name).unlink(missing_ok=True)
    (HOME / "logs").mkdir()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    demo = Demo(programs)
    try:
        with demo.children:
            for stage in (demo.endpoint, demo.corpus, demo.tokenizer, demo.mount, demo.train, demo.serve, demo.summary):
                stage()
    except Failed as failure:
        print(f"\ndemo: FAILED: {failure}\n      logs: {HOME / 'logs'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything it started is stopped", file=sys.stderr)
        return 130
    print("\ndemo: every claim held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
