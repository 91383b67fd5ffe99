#!/usr/bin/env python3
"""Measures `millrace serve` beside transformers' generate: tokens per second of 1, 8 and 32 texts made together, and the
time to the first token of a 1,000-token prompt. Both have the same random weights, prompts and threads; greedy, without guessed
tokens.

    compare.py PROGRAM PYTHON TOKENIZER [--model llama-58m|gpt2-124m] [--precision f32|bf16] [--rounds N] [--threads N]
               [--streams 1,8,32]

PROGRAM is build/release/bin/millrace-serve; PYTHON has torch and transformers; TOKENIZER is a file with as many tokens
as the model, or fewer. A ratio is that of the best rounds, which suffer least from what else the machine does."""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

MODELS = {
    "llama-58m": ("LlamaConfig", dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
                                      num_key_value_heads=8, vocab_size=32000, max_position_embeddings=2048)),
    "gpt2-124m": ("GPT2Config", dict()),
}
PROMPT, TOKENS, LONG = 128, 64, 1000
PEER = """
import json, sys, time, torch, transformers
folder, dtype, threads = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
print(json.dumps({"version": transformers.__version__, "torch": torch.__version__}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    ids = torch.tensor(request["prompts"])
    with torch.inference_mode():
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=request["tokens"],
                             min_new_tokens=request["tokens"], pad_token_id=0)
        print(json.dumps({"s": time.perf_counter() - start, "tokens": out[:, ids.shape[1]:].tolist()}), flush=True)
"""
MAKE = """
import sys, json, torch, transformers
torch.manual_seed(1)
config = getattr(transformers, sys.argv[2])(**json.loads(sys.argv[3]), bos_token_id=1, eos_token_id=2)
model = transformers.AutoModelForCausalLM.from_config(config)
with torch.no_grad():  # so that greedy texts differ, and do not end
    for name, weight in model.named_parameters():
        if weight.dim() > 1: weight.mul_(3)
model.save_pretrained(sys.argv[1])
"""


def complete(port, prompt, tokens, **parameters):
    """Asks a server on this machine for a greedy text, as a stream. Returns the seconds to the first token and to the last, and
    the number of tokens."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
         **parameters}), {"Content-Type": "application/json"})
    response, first, usage = connection.getresponse(), None, None
    if response.status != 200:
        sys.exit(response.read().decode())
    for line in response:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - start
            usage = json.loads(line[6:]).get("usage") or usage
    return first, time.perf_counter() - start, usage["completion_tokens"]


def parser(text):
    """Returns a parser of the arguments that these benchmarks share."""
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("python")
    p.add_argument("tokenizer")
    p.add_argument("--model", choices=MODELS, default="llama-58m")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    return p


class Server:
    """`millrace-serve` with a model folder."""

    def __init__(self, program, folder, tokenizer, precision, threads, *flags):
        self.port_file = pathlib.Path(folder) / "port"
        self.process = subprocess.Popen([program, folder, "--tokenizer", tokenizer, "--precision", precision, "--device", "cpu",
                                         "--threads", str(threads), "--listen", "127.0.0.1:0", "--port-file", self.port_file,
                                         "--draft-tokens", "0", "--quiet", *flags])
        while not self.port_file.exists():
            if self.process.poll() is not None:
                sys.exit(f"{program} did not start")
            time.sleep(0.05)
        self.port = int(self.port_file.read_text())

    def complete(self, prompt, tokens, model=None):
        """As complete(). `model`: an adapter's name."""
        return complete(self.port, prompt, tokens, **({"model": model} if model else {}))

    def texts(self, prompts, tokens, models=()):
        """Returns the tokens per second of these texts together. `models`: the adapter of each; none: the model's own."""
        models = models or [None] * len(prompts)
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            start = time.perf_counter()
            made = list(pool.map(lambda prompt, model: self.complete(prompt, tokens, model), prompts, models))
            return sum(count for _, _, count in made) / (time.perf_counter() - start)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Peer:
    """transformers in a process of its own."""

    def __init__(self, python, folder, precision, threads):
        dtype = {"f32": "float32", "bf16": "bfloat16"}[precision]
        self.process = subprocess.Popen([python, "-c", PEER, folder, dtype, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        self.versions = json.loads(self.process.stdout.readline())

    def ask(self, prompts, tokens):
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    p = parser(__doc__)
    p.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    p.add_argument("--streams", default="1,8,32", help="texts that are made together")
    o = p.parse_args()
    family, config = MODELS[o.model]
    each = [int(streams) for streams in o.streams.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([o.python, "-c", MAKE, folder, family, json.dumps(config)], check=True)
        shutil.copy(o.tokenizer, folder)
        draw = random.Random(1)
        prompts = lambda count, length: [[draw.randrange(3, 30000) for _ in range(length)] for _ in range(count)]
        server = Server(o.program, folder, o.tokenizer, o.precision, o.threads)
        peer = Peer(o.python, folder, o.precision, o.threads)
        try:
            server.texts(prompts(2, 8), 4)
            peer.ask(prompts(2, 8), 4)
            best = {}
            for _ in range(o.rounds):
                for streams in each:
                    texts = prompts(streams, PROMPT)
                    own = server.texts(texts, TOKENS)
                    other = streams * TOKENS / peer.ask(texts, TOKENS)["s"]
                    best[streams] = [max(a, b) for a, b in zip(best.get(streams, (0, 0)), (own, other))]
                own = server.complete(prompts(1, LONG)[0], 1)[0]
                other = peer.ask(prompts(1, LONG), 1)["s"]
                best["first"] = [min(a, b) for a, b in zip(best.get("first", (1e9, 1e9)), (own, other))]
        finally:
            server.stop()
            peer.stop()
    name = f"{o.model} {o.precision}, {o.threads} threads, transformers {peer.versions['version']}"
    for streams in each:
        own, other = best[streams]
        print(f"{name}: {streams} texts: {own:.1f} tokens/s, {own / other:.2f}x ({other:.1f})", flush=True)
    own, other = best["first"]
    print(f"{name}: first token of a {LONG}-token prompt: {own * 1000:.0f} ms, {own / other:.2f} of the time ({other * 1000:.0f})")


if __name__ == "__main__":
    main()
