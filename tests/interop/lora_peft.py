#!/usr/bin/env python3
"""Compares LoRA runs of `millrace train` with PEFT's, step by step: losses and final adapters.

    lora_peft.py train|files --millrace build/release/bin/millrace

| test  | what                                                                                          |
|-------|-----------------------------------------------------------------------------------------------|
| train | 50 steps from an adapter that PEFT saved, on one rank and on several, against a loop with PEFT; |
|       | `job plan` counts what PEFT trains                                                            |
| files | an adapter that begins with us: PEFT loads it; names, scale and merged weights agree           |

Both sides begin with the same model and adapter, and read the same tokens in the same order, without dropout.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

from checkpoint_formats import Program, need, torch
from data_formats import megatron
from parallel_torch import LENGTH, ROWS, TOKENIZER, VOCABULARY, language, make_model, mean_loss, run_job

STEPS = 50
LR, BETAS, EPS = 5e-3, (0.9, 0.95), 1e-6
# Relative. Both compute in float32 and add in different orders.
LOSS_TOLERANCE, ADAPTER_TOLERANCE, MERGE_TOLERANCE = 1e-4, 1e-3, 1e-6
CASES = (  # family, LoraConfig's arguments, layouts of millrace, LoRA+'s ratio
    ("llama", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, ["", "tensor: 2, sequence: true", "pipeline: 2"], 1),
    ("llama", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "use_dora": True},
     ["", "tensor: 2, sequence: true", "pipeline: 2", "data: 2, shard: 2, zero: 3"], 1),
    ("gpt2", {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
     ["", "tensor: 2"], 4),
    ("gpt2", {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True},
     ["", "tensor: 2"], 2),
    # A head of its own, and one that is the embedding.
    ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj", "lm_head"]},
     ["", "tensor: 2, sequence: true", "pipeline: 2"], 1),
    ("gpt2", {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "lm_head"], "fan_in_fan_out": True},
     ["", "tensor: 2", "pipeline: 2"], 1),
    ("gptj", {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "fc_in"]}, ["", "data: 2, shard: 2, zero: 3"], 1),
)


def name_of(family, arguments):
    name = f"{family}, DoRA" if arguments.get("use_dora") else family
    return f"{name}, head" if "lm_head" in arguments["target_modules"] else name


def make_base(family):
    import transformers

    if family != "gptj":
        return make_model(family)
    torch.manual_seed(3)
    return transformers.GPTJForCausalLM(transformers.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=4, n_positions=64, rotary_dim=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, initializer_range=0.05))


def make_adapted(family, arguments):
    """Returns the base with a new adapter, A and B both random, so that each has a gradient from the first step on."""
    import peft

    torch.manual_seed(7)
    return peft.get_peft_model(make_base(family), peft.LoraConfig(
        task_type="CAUSAL_LM", lora_dropout=0.0, init_lora_weights=False, **arguments))


def train_with_peft(model, tokens, lr_ratio):
    from peft.optimizers import create_loraplus_optimizer

    optimizer = create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=LR, loraplus_lr_ratio=lr_ratio, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        rows = torch.tensor([tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * ROWS, (step + 1) * ROWS)])
        loss = mean_loss(model(rows[:, :-1]).logits, rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adapter_of(folder):
    from safetensors.torch import load_file

    # Where PEFT adapts a head, it saves the head's own weights, too.
    tensors = load_file(folder / "adapter_model.safetensors")
    return {name: value for name, value in tensors.items() if "base_layer" not in name}


class Runs:
    def __init__(self, program, folder, family, tokens):
        self.program, self.folder = program, folder
        (folder / "tokens.bin").write_bytes(megatron([tokens], 2)[0])
        (folder / "tokens.idx").write_bytes(megatron([tokens], 2)[1])
        make_base(family).save_pretrained(folder / "base")

    def train(self, name, lora, parallel="", steps=STEPS, base="base"):
        """Trains, exports the adapter to the folder NAME-peft, and returns the losses."""
        ranks = 2 if parallel else 1
        job = self.folder / f"{name}.yaml"
        job.write_text(f"""name: {name}
model: {{from: "{self.folder}/{base}"}}
lora: {lora}
data:
  sources: [{{url: "{self.folder}/tokens"}}]
  tokenizer: {TOKENIZER}
  sequence_length: {LENGTH}
  shuffle: {{window: 0}}
  threads: 1
train:
  steps: {steps}
  global_batch: {ROWS}
  micro_batch: 2
  optimizer: {{lr: {LR:f}, betas: {list(BETAS)}, eps: {EPS:.9f}, weight_decay: 0, clip_norm: 0}}
  schedule: {{name: constant}}
  parallel: {{{parallel}}}
  threads: 1
checkpoint: {{url: "{self.folder}/{name}", every_steps: {steps}}}
run: {{processes_per_node: {ranks}}}
""")
        losses = [line["loss"] for line in run_job(self.program, job, steps)]
        self.program("export", self.folder / name, self.folder / f"{name}-peft", "--to", "peft")
        return losses


def check_plan(runs, name, model, layout):
    """`job plan` counts the parameters that PEFT trains, those of an adapter that the job names as well."""
    done = subprocess.run([runs.program.path, "--json", "job", "plan", runs.folder / f"{name}.yaml"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    trained, total = model.get_nb_trainable_parameters()
    assert (plan["trained_parameters"], plan["parameters"]) == (trained, total), (plan, trained, total)
    if not layout:  # gradients, and two moments
        memory = plan["memory"][0]
        assert abs(memory["gradients"] - 4 * trained) < 0.1 * memory["gradients"], (memory, trained)
        assert memory["optimizer"] == 2 * memory["gradients"], memory


def test_train(runs, tokens, family, arguments, layouts, lr_ratio):
    model = make_adapted(family, arguments)
    model.save_pretrained(runs.folder / "start")
    theirs = train_with_peft(model, tokens, lr_ratio)
    model.save_pretrained(runs.folder / "end")
    wanted = adapter_of(runs.folder / "end")
    for number, layout in enumerate(layouts):
        ours = runs.train(f"run{number}", f'{{adapter: "{runs.folder}/start", loraplus_lr_ratio: {lr_ratio}}}', layout)
        check_plan(runs, f"run{number}", model, layout)
        got = adapter_of(runs.folder / f"run{number}-peft")
        assert got.keys() == wanted.keys(), set(got) ^ set(wanted)
        loss = max(abs(a - b) / b for a, b in zip(ours, theirs))
        weights = max(((got[name] - value).norm() / value.norm()).item() for name, value in wanted.items())
        print(f"{name_of(family, arguments)}, {layout or 'one rank'}: loss {ours[0]:.6f} -> {ours[-1]:.6f}; largest relative differences: "
              f"losses {loss:.1e}, adapters {weights:.1e}", flush=True)
        assert ours[-1] < ours[0] - 0.2, "it learns nothing"
        assert loss <= LOSS_TOLERANCE and weights <= ADAPTER_TOLERANCE


def test_files(runs, tokens, family, arguments, layouts, lr_ratio):
    import peft

    names = {"r": arguments["r"], "alpha": arguments["lora_alpha"], "dropout": 0.1,
             "rslora": arguments.get("use_rslora", False), "dora": arguments.get("use_dora", False), "targets": arguments["target_modules"]}
    runs.train("own", json.dumps(names), steps=4)
    loaded = peft.PeftModel.from_pretrained(make_base(family), runs.folder / "own-peft")
    mine = adapter_of(runs.folder / "own-peft")
    theirs = peft.get_peft_model_state_dict(loaded, save_embedding_layers=False)
    assert mine.keys() == theirs.keys(), set(mine) ^ set(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    config = loaded.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (names["r"], names["alpha"], 0.1), config
    assert (config.use_rslora, config.use_dora) == (names["rslora"], names["dora"]), config
    if family == "gpt2" and "lm_head" in arguments["target_modules"]:
        runs.program("merge", runs.folder / "own", runs.folder / "merged", fails="a merge would change both")
        print(f"{name_of(family, arguments)}: PEFT loads {len(mine)} tensors; we refuse to merge them", flush=True)
        return
    # The run knows its base; a PEFT folder's base is named.
    for number, merge in enumerate([["own"], ["own-peft", "--base", runs.folder / "base"]]):
        runs.program("merge", runs.folder / merge[0], runs.folder / f"merged{number}", *merge[1:])
        merged = type(make_base(family)).from_pretrained(runs.folder / f"merged{number}", dtype=torch.float32)
        for name, value in peft.PeftModel.from_pretrained(
                make_base(family), runs.folder / "own-peft").merge_and_unload().state_dict().items():
            difference = (merged.state_dict()[name] - value).abs().max().item()
            assert difference <= MERGE_TOLERANCE * value.abs().max().item(), (name, difference)
    print(f"{name_of(family, arguments)}: PEFT loads {len(mine)} tensors, and merges them as we do", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["train", "files"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    need("transformers").utils.logging.disable_progress_bar()
    need("peft")
    torch.set_num_threads(1)
    tokens = language(STEPS * ROWS * LENGTH + 1)
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Program(pathlib.Path(arguments.millrace).resolve()), pathlib.Path(folder), case[0], tokens)
            globals()[f"test_{arguments.test}"](runs, tokens, *case)


if __name__ == "__main__":
    main()
