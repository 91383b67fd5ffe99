#!/usr/bin/env python3
"""Measures what adapters cost `millrace serve`: tokens per second of texts that are made together, all of the base, all of one
adapter, and each of another adapter. LoRA and DoRA of rank 16 on all linear layers.

    adapters.py PROGRAM PYTHON TOKENIZER [--model llama-58m|gpt2-124m] [--precision f32|bf16] [--rounds N] [--threads N]
                [--streams 8]

PROGRAM, PYTHON and TOKENIZER are those of compare.py; PYTHON also has peft. All rows are measured in turns, with one server. A
figure is that of the best round."""
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

from compare import MAKE, MODELS, PROMPT, TOKENS, Server, parser

RANK = 16
ADAPT = """
import sys, torch, transformers, peft
folder, into, count, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for kind in ("lora", "dora"):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear", use_dora=kind == "dora",
        fan_in_fan_out=model.config.model_type == "gpt2"))
    for number in range(count):
        torch.manual_seed(number)
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name: weight.normal_(std=0.01)
        adapted.save_pretrained(f"{into}/{kind}-{number}")
"""


def main():
    p = parser(__doc__)
    p.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    p.add_argument("--streams", type=int, default=8, help="texts that are made together, and adapters of each kind")
    o = p.parse_args()
    family, config = MODELS[o.model]
    rows = {"base": ["base"] * o.streams}
    for kind in ("lora", "dora"):
        rows[f"one {kind}"] = [f"{kind}-0"] * o.streams
        rows[f"{o.streams} {kind}"] = [f"{kind}-{number}" for number in range(o.streams)]
    with tempfile.TemporaryDirectory() as folder:
        base, adapters = pathlib.Path(folder) / "base", pathlib.Path(folder) / "adapters"
        subprocess.run([o.python, "-c", MAKE, base, family, json.dumps(config)], check=True)
        subprocess.run([o.python, "-c", ADAPT, base, adapters, str(o.streams), str(RANK)], check=True)
        shutil.copy(o.tokenizer, base)
        draw = random.Random(1)
        prompts = lambda: [[draw.randrange(3, 30000) for _ in range(PROMPT)] for _ in range(o.streams)]
        server = Server(o.program, base, o.tokenizer, o.precision, o.threads, "--adapters", adapters, "--name", "base",
                        "--adapter-memory", "8GiB")
        try:
            best = {}
            for turn in range(o.rounds + 1):  # the first one loads the adapters
                for row, models in rows.items():
                    speed = server.texts(prompts(), TOKENS, models)
                    if turn > 0:
                        best[row] = max(best.get(row, 0), speed)
        finally:
            server.stop()
    for row, speed in best.items():
        print(f"{o.model} {o.precision}, {o.threads} threads, {o.streams} texts: {row}: {speed:.1f} tokens/s, "
              f"{speed / best['base']:.2f} of the base's", flush=True)


main()
