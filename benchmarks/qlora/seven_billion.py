#!/usr/bin/env python3
"""Fine-tunes a model of Llama-2-7B's shapes over nf4 weights on this machine, and measures time and memory.

    seven_billion.py --millrace build/release/bin/millrace --folder /scratch

Random weights in bfloat16 (13.5 GB) are written once to a bucket of a MinIO whose data are below --folder, as a Hugging
Face folder in shards. A run then quantizes them while they stream from the bucket, trains adapters of rank 16 on all
linear layers with sequences of 512 tokens, is killed after the second step, and goes on from its checkpoint. Prints, of
each start, the seconds up to the first step and of each step, and the kernel's own peak of resident memory (VmHWM),
which counts the mapped weights. Needs numpy, boto3 and minio, from MILLRACE_PEERS or PATH, and 20 GB of disk.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import boto3
import numpy
from botocore.config import Config

KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark-secret", "AWS_REGION": "us-east-1"}
TOKENIZER = pathlib.Path(__file__).parents[2] / "millrace/train/testdata/tokenizer.model"


def sizes(layers):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}


def shards(config):
    """Yields the names and shapes of the tensors of each shard: two blocks, or what stands outside of them."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    yield {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden),
           "model.norm.weight": (hidden,)}
    for first in range(0, config["num_hidden_layers"], 2):
        shapes = {}
        for layer in range(first, min(first + 2, config["num_hidden_layers"])):
            name = f"model.layers.{layer}."
            for part in "qkvo":
                shapes[f"{name}self_attn.{part}_proj.weight"] = (hidden, hidden)
            shapes[name + "mlp.gate_proj.weight"] = shapes[name + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[name + "mlp.down_proj.weight"] = (hidden, inner)
            shapes[name + "input_layernorm.weight"] = shapes[name + "post_attention_layernorm.weight"] = (hidden,)
        yield shapes


def write_shard(path, shapes, generator):
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            values = generator.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)
            if len(shape) == 1:
                values = numpy.ones(shape, numpy.float32)
            out.write((values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())


def fill_bucket(s3, bucket, config, scratch):
    generator, index = numpy.random.default_rng(1), {}
    all_shards = list(shards(config))
    for number, shapes in enumerate(all_shards, 1):
        name = f"model-{number:05}-of-{len(all_shards):05}.safetensors"
        write_shard(scratch / name, shapes, generator)
        s3.upload_file(str(scratch / name), bucket, "llama/" + name)
        (scratch / name).unlink()
        index.update(dict.fromkeys(shapes, name))
    s3.put_object(Bucket=bucket, Key="llama/config.json", Body=json.dumps(config).encode())
    # The index last: a folder that has one is whole.
    s3.put_object(Bucket=bucket, Key="llama/model.safetensors.index.json", Body=json.dumps({"weight_map": index}).encode())


def is_there(s3, bucket, key):
    return s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount", 0) > 0


class Peak(threading.Thread):
    """Watches the peak of the resident memory of the processes of a program below `parent`."""

    def __init__(self, parent):
        super().__init__(daemon=True)
        self.parent, self.mib, self.done = parent, 0, threading.Event()

    def run(self):
        while not self.done.wait(0.5):
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    status = (folder / "status").read_text()
                    if not status.startswith("Name:\tmillrace-train"):
                        continue
                    if os.getpgid(int(folder.name)) != self.parent and os.getsid(int(folder.name)) != self.parent:
                        continue
                    self.mib = max(self.mib, int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10)
                except (OSError, TypeError):
                    pass


def run(program, job, environment, kill_after):
    start = time.monotonic()
    process = subprocess.Popen([program, "--json", "train", job], env=environment, stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    peak = Peak(process.pid)
    peak.start()
    steps = []
    for line in process.stdout:
        event = json.loads(line) if line.startswith("{") else {}
        if "grad_norm" not in event:
            continue
        steps.append((event["step"], event["loss"], time.monotonic() - start))
        print(f"  step {event['step']}: loss {event['loss']:.6f} after {steps[-1][2]:.0f} s", flush=True)
        if len(steps) == kill_after:
            time.sleep(20)  # for the checkpoint of this step
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    peak.done.set()
    if not steps:
        raise SystemExit(f"millrace ended with {code} and made no step")
    between = [b[2] - a[2] for a, b in zip(steps, steps[1:])]
    print(f"  {'killed' if kill_after else 'ended with %d' % code}; first step after {steps[0][2]:.0f} s, others "
          f"{', '.join('%.0f s' % seconds for seconds in between) or '-'}; peak {peak.mib} MiB", flush=True)
    return steps


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--millrace", required=True)
    p.add_argument("--folder", type=pathlib.Path, required=True)
    p.add_argument("--layers", type=int, default=32, help="fewer, for a trial")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--base", default="nf4")
    o = p.parse_args()
    folder = o.folder / f"qlora-{o.layers}"
    folder.mkdir(parents=True, exist_ok=True)
    minio = pathlib.Path(os.environ.get("MILLRACE_PEERS", "")) / "bin/minio"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    server = subprocess.Popen([str(minio) if minio.exists() else "minio", "server", "--quiet", "--address", address,
                               str(folder / "minio")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=dict(os.environ, MINIO_ROOT_USER=KEYS["AWS_ACCESS_KEY_ID"],
                                       MINIO_ROOT_PASSWORD=KEYS["AWS_SECRET_ACCESS_KEY"]))
    try:
        s3 = boto3.client("s3", endpoint_url="http://" + address, aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
                          aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"], region_name=KEYS["AWS_REGION"],
                          config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 10}))
        for bucket in ("models", "runs"):
            for attempt in range(50):
                try:
                    s3.create_bucket(Bucket=bucket)
                except s3.exceptions.BucketAlreadyOwnedByYou:
                    break
                except Exception:
                    time.sleep(0.2)
                else:
                    break
        if not is_there(s3, "models", "llama/model.safetensors.index.json"):
            print("writing the model", flush=True)
            fill_bucket(s3, "models", sizes(o.layers), folder)
        name = f"run-{int(time.time())}"
        words = random.Random(1)
        text = [" ".join("".join(words.choices("abcdefgh ", k=6)) for _ in range(400)) for _ in range(64)]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text))
        job = folder / "job.yaml"
        job.write_text(f"""name: {name}
model: {{from: "s3://models/llama"}}
lora: {{r: 16, alpha: 32, base: {o.base}}}
data:
  sources: [{{url: "{folder}/text.jsonl"}}]
  tokenizer: {TOKENIZER}
  sequence_length: 512
train:
  steps: {o.steps}
  global_batch: 1
  optimizer: {{lr: 0.0002}}
  parallel: {{recompute: full}}
checkpoint: {{url: "s3://runs/{name}", every_steps: 1}}
run: {{processes_per_node: 1}}
""")
        cache = folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        environment = dict(os.environ, AWS_ENDPOINT_URL="http://" + address, XDG_CACHE_HOME=str(cache),
                           MILLRACE_STATE_DIR=str(folder / "state"), **KEYS)
        program = str(pathlib.Path(o.millrace).resolve())
        print("from the bucket:", flush=True)
        before = run(program, job, environment, kill_after=2)
        print("after a kill:", flush=True)
        after = run(program, job, environment, kill_after=0)
        quantized = sum(file.stat().st_size for file in cache.rglob("*.safetensors"))
        print(f"{quantized / 1e9:.2f} GB on the disk; resumed at step {after[0][0]}, after step {before[-1][0]}")
    finally:
        server.terminate()
        server.wait()


main()
