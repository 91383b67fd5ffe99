#!/usr/bin/env python3
"""Trains GPT-2 (124M) on blocks of sentences in SST-2's form, compiled and plain, beside Hugging Face's loop.

    compare.py --millrace build/release/bin/millrace --python PYTHON [--tokenizer r50k_base.tiktoken] [--picture OUT.svg]

As run_clm does, texts are joined and cut into blocks. Four ways begin with the same random weights and read the same blocks in
the same order, without dropout: `train.compile: off`, `on`, and run_clm's loop eager and under torch.compile. Prints a table,
how far the losses lie apart, and how long the first step of a compiled run takes beside the tenth. A last compiled run, which saves
checkpoints and streams from a server of buckets, tells what steps wait for. PYTHON has torch and transformers. Without a tokenizer,
one is trained on the texts. Let nothing else run meanwhile.

With --dropout 0.1 --rounds 5, each round has a seed of its own, and the mean losses are compared: PyTorch draws other numbers.

--device cuda --precision bf16 --corpus repository --steps 1000 --ways on,eager compares whole curves on a GPU.

A block's last token predicts the next block's first, in all four; run_clm leaves this one label out.
"""
import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import tempfile
import time

import pictures

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
SENTENCES = SOURCE / "examples/sst2/sentences.py"
VOCABULARY = 50257
OFF, ON, EAGER, COMPILED = "Millrace, compile: off", "Millrace, compile: on", "run_clm, eager", "run_clm, torch.compile"
MAKE_MODEL = """import json, sys, torch, transformers
torch.manual_seed(1)
transformers.GPT2LMHeadModel(transformers.GPT2Config(**json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])"""


def run(command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def texts_of(o, folder):
    if o.corpus == "repository":
        files = (path for kind in ("*.md", "*.cc", "*.h", "*.py") for path in SOURCE.rglob(kind) if "build" not in path.parts)
        return "".join(path.read_text() for path in sorted(files))
    run(["python3", SENTENCES, folder / "sst2"])
    lines = (folder / "sst2/train.tsv").read_text().splitlines()[1:]
    return "\n".join(line.split("\t")[0] for line in lines) + "\n"


def make_tokens(o, folder):
    """Writes the ids of all texts, joined: as JSON for the peer, and as Megatron's files for Millrace."""
    texts = texts_of(o, folder)
    if not o.tokenizer:
        (folder / "texts.txt").write_text(texts)
        o.tokenizer = folder / "tokenizer.model"
        run([o.millrace, "tokenizer", "train", "--input", folder / "texts.txt", "--vocab-size", 8000 if o.corpus == "repository" else 400,
             "--output", o.tokenizer])
    rows = run([o.millrace, "tokenizer", "encode", "--model", o.tokenizer], input=texts).splitlines()
    tokens = [int(word) for row in rows for word in row.split()]
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", len(tokens), 0, 0, 1)
    (folder / "tokens.idx").write_bytes(index)
    assert len(tokens) > o.steps * o.batch * o.length, f"{len(tokens)} tokens are too few; take fewer steps"


def train(o, folder, compile_mode, lr, seed, checkpoint="", tokens="", environment=None):
    """Returns what `millrace train` prints, an object a line."""
    environment = dict(os.environ, **(environment or {}))
    job = folder / "job.yaml"
    job.write_text(f"""name: training-compiler
model: {{from: "{folder}/model"}}
data:
  sources: [{{url: "{tokens or folder / "tokens"}"}}]
  tokenizer: {o.tokenizer}
  sequence_length: {o.length}
  shuffle: {{window: 0}}
train:
  steps: {o.steps}
  seed: {seed}
  device: {o.device}
  precision: {o.precision}
  global_batch: {o.batch}
  micro_batch: {o.batch}
  optimizer: {{lr: {lr:.9f}, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 0, clip_norm: 1}}
  schedule: {{name: linear, warmup_steps: 0, min_lr: 0}}
  compile: {compile_mode}
  compile_cache: "{folder}/compiled"
  threads: {o.threads}
{checkpoint}
""")
    if compile_mode == "on":
        run([o.millrace, "job", "compile", job], env=environment)
    return [json.loads(line) for line in run([o.millrace, "--json", "train", job], env=environment).splitlines()]


@contextlib.contextmanager
def bucket_server(o, folder):
    """Serves buckets, and gives the variables with which programs reach them."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{any_port.getsockname()[1]}"
    keys = {"MILLRACE_S3D_ACCESS_KEY": "bench", "MILLRACE_S3D_SECRET_KEY": "bench-secret"}
    server = subprocess.Popen([o.millrace, "s3d", "--root", folder / "buckets", "--listen", address], env=os.environ | keys,
                              stdout=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0:
                    break
            assert server.poll() is None, "the server of buckets ended"
            time.sleep(0.05)
        yield {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1",
               "AWS_ENDPOINT_URL": f"http://{address}"}
    finally:
        server.terminate()
        server.wait()


def steps_of(lines):
    return [line | {"seconds": line["step_s"]} for line in lines if "loss" in line and "event" not in line]


def print_waits(o, folder, lr):
    """Trains with a checkpoint every 10 steps, and prints what the steps waited for."""
    every = max(10, o.steps // 10)
    with bucket_server(o, folder) as environment:
        run([o.millrace, "mb", "s3://corpus", "s3://runs"], env=os.environ | environment)
        for name in ("tokens.bin", "tokens.idx"):
            run([o.millrace, "cp", folder / name, f"s3://corpus/{name}"], env=os.environ | environment)
        checkpoint = f'checkpoint: {{url: "s3://runs/waits", every_steps: {every}}}'
        lines = train(o, folder, "on", lr, 1, checkpoint, "s3://corpus/tokens", environment)
    found = next(line for line in lines if line.get("event") == "compiled")
    steps = steps_of(lines)[1:]
    whole = sum(step["step_s"] for step in steps)
    data, saves = (sum(step[key] for step in steps) / whole for key in ("data_wait_s", "checkpoint_wait_s"))
    print(f"with a checkpoint every {every} steps: waited for data {data:.3%}, for checkpoints {saves:.3%} of the time after the first "
          f"step; the compiled step came from the {found['from']} in {found['seconds']:.3f} s")


def run_peer(o, folder, compiles, lr, seed):
    command = [o.python, HERE / "peer.py", folder / "model", folder / "tokens.json", "--batch", o.batch, "--length", o.length,
               "--steps", o.steps, "--threads", o.threads, "--lr", f"{lr:.9f}", "--seed", seed, "--device", "cuda" if o.device == "cuda" else "cpu"]
    command += ["--compile"] * compiles + ["--bf16"] * (o.precision == "bf16")
    return [json.loads(line) for line in run(command).splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--millrace", "--python", "--tokenizer"):
        parser.add_argument(name, required=name != "--tokenizer", type=lambda path: pathlib.Path(path).absolute())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--corpus", choices=["sentences", "repository"], default="sentences",
                        help="repository: all texts and sources of this one, which are enough for 1,000 steps")
    parser.add_argument("--ways", default="off,on,eager,compiled", help="which of these; eager is needed")
    for name, value in (("--batch", 1), ("--length", 512), ("--steps", 12), ("--rounds", 1), ("--threads", 2)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--layers", type=int, default=12, help="fewer for a quick look")
    parser.add_argument("--dropout", type=float, default=0.0, help="all of GPT-2's; its own is 0.1")
    parser.add_argument("--lr", type=float, default=0, help="the first learning rate; default: 5e-5 / 32 of each block, the article's rule")
    parser.add_argument("--price", type=float, default=1.0, help="of this machine an hour")
    parser.add_argument("--picture", type=pathlib.Path)
    o = parser.parse_args()
    lr = o.lr or 5e-5 / 32 * o.batch
    all_ways = {OFF: lambda folder, seed: steps_of(train(o, folder, "off", lr, seed)),
            ON: lambda folder, seed: steps_of(train(o, folder, "on", lr, seed)),
            EAGER: lambda folder, seed: run_peer(o, folder, False, lr, seed),
            COMPILED: lambda folder, seed: run_peer(o, folder, True, lr, seed)}
    ways = {way: work for (way, work), word in zip(all_ways.items(), ("off", "on", "eager", "compiled")) if word in o.ways.split(",")}
    steps = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_tokens(o, folder)
        config = {"n_layer": o.layers, "vocab_size": VOCABULARY}
        config |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), o.dropout)
        run([o.python, "-c", MAKE_MODEL, folder / "model", json.dumps(config)])
        for seed in range(1, o.rounds + 1):
            for way, work in ways.items():
                steps[way].append(work(folder, seed))
        print_waits(o, folder, lr)
    # The first two steps of each run compile or warm up.
    speed = {way: statistics.median(o.batch * o.length / s["seconds"] for run_ in runs for s in run_[2:])
             for way, runs in steps.items()}
    losses = {way: [(same[0]["step"] * o.batch, statistics.mean(s["loss"] for s in same)) for same in zip(*runs)]
              for way, runs in steps.items()}
    for way in ways:
        apart = max(abs(a - b) / b for (_, a), (_, b) in zip(losses[way], losses[EAGER]))
        end = statistics.mean(loss for _, loss in losses[way][-max(1, o.steps // 10):])
        print(f"{way:24} {speed[way]:7.1f} tokens/s, {speed[way] / speed[EAGER]:.2f} x eager, loss {losses[way][0][1]:.6f} -> "
              f"{losses[way][-1][1]:.6f}, at most {apart:.1e} from eager's; mean of the last tenth {end:.4f}", flush=True)
    if o.dropout > 0 and o.rounds > 1:
        print("mean loss of a run, with the standard error over the seeds:")
        for way, runs in steps.items():
            means = [statistics.mean(s["loss"] for s in one) for one in runs]
            print(f"{way:24} {statistics.mean(means):.5f} ± {statistics.stdev(means) / len(means) ** 0.5:.5f}")
    for name, other in (("off", OFF), ("torch.compile", COMPILED)):
        if ON in speed and other in speed:
            print(f"on / {name}: {speed[ON] / speed[other]:.2f}")
    if ON in steps:
        of_on = steps[ON][0]
        print(f"compiled: first step {of_on[0]['seconds']:.2f} s, tenth {of_on[min(9, o.steps - 1)]['seconds']:.2f} s")
    if o.picture:
        cost = {way: o.price * 1e8 / value / 3600 for way, value in speed.items()}
        o.picture.write_text(pictures.draw(
            f"GPT-2 ({o.layers} layers), batch {o.batch} x {o.length} tokens, {o.threads} threads, {o.price:g} an hour",
            speed, losses, {way: 1e5 / value / 60 for way, value in speed.items()}, cost), encoding="utf-8")


main()
