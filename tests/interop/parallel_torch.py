#!/usr/bin/env python3
"""Compares `millrace train` with PyTorch's own parallelism, step by step: losses, gradient norms and final weights.

    parallel_torch.py tensor|pipeline|sharded|mixed|combined --millrace build/release/bin/millrace

| test     | layouts of millrace                          | PyTorch                                              |
|----------|----------------------------------------------|------------------------------------------------------|
| tensor   | tensor 2, without and with `sequence`        | parallelize_module: Colwise, Rowwise, Sequence       |
| pipeline | pipeline 2, schedules 1f1b and simple        | ScheduleGPipe, Schedule1F1B                          |
| sharded  | zero 3 over 2 ranks, hybrid over 2 x 2 ranks | fully_shard (FSDP2) on a mesh of one and two axes    |
| mixed    | zero 3 over 2 ranks, precision bf16          | fully_shard with a MixedPrecisionPolicy: parameters  |
|          |                                              | in bfloat16, gradients added in float32              |
| combined | pipeline 2 x tensor 2, without and with      | a mesh of two or three axes: Schedule1F1B of stages  |
|          | `sequence`; that and zero 3 over 2 ranks     | after parallelize_module and fully_shard             |

Both sides begin with the same weights, which transformers saved, and read the same tokens in the same order. Both
train in float32 with AdamW, clipping and a cosine schedule. PyTorch's ranks are processes that use Gloo, and its models
are the blocks of transformers. In bfloat16 the two sides round at other places, so each is compared with the run in
float32: Millrace's weights may be 1.5 times as far from it as PyTorch's, and its losses three times.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from checkpoint_formats import Program, need, torch
from data_formats import megatron
from trainer_checkpoints import fork

STEPS, WARMUP = 12, 3
ROWS, MICRO_BATCHES, LENGTH = 8, 4, 32  # of a step: rows, and the micro-batches into which a pipeline cuts them
VOCABULARY = 300  # of TOKENIZER
LR, LEAST_LR, BETAS, EPS, DECAY, CLIP = 1e-2, 1e-3, (0.9, 0.95), 1e-6, 0.1, 0.5
TOKENIZER = pathlib.Path(__file__).parents[2] / "millrace/train/testdata/tokenizer.model"
# Relative. float32 rounds to 6e-8, and the two sides add in different orders. Measured over all layouts: losses 2e-7,
# gradient norms 1.2e-5, weights 7e-6. AdamW makes rounding errors of small gradients larger, so the last two grow.
LOSS_TOLERANCE, NORM_TOLERANCE, WEIGHT_TOLERANCE = 1e-6, 5e-5, 3e-5


def make_model(family, hidden=32, inner=48):
    import transformers

    torch.manual_seed(3)
    common = dict(vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, initializer_range=0.05)
    if family == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=hidden, n_layer=4, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, rms_norm_eps=1e-5, **common))


class Decoder(torch.nn.Module):
    """The parts of a model of transformers, called one by one: so a stage can have some of them."""

    def __init__(self, family, model, stage=0, stages=1):
        super().__init__()
        gpt2 = family == "gpt2"
        inner = model.transformer if gpt2 else model.model
        layers = inner.h if gpt2 else inner.layers
        share = len(layers) // stages
        self.layers = layers[stage * share:(stage + 1) * share]
        first, last = stage == 0, stage + 1 == stages
        self.embed = (inner.wte if gpt2 else inner.embed_tokens) if first else None
        self.places = inner.wpe if gpt2 and first else None
        self.rotary = None if gpt2 else inner.rotary_emb
        self.norm = (inner.ln_f if gpt2 else inner.norm) if last else None
        self.lm_head = model.lm_head if last else None

    def forward(self, hidden):
        positions = torch.arange(LENGTH)[None]
        if self.embed is not None:
            hidden = self.embed(hidden)
        if self.places is not None:
            hidden = hidden + self.places(positions)
        turns = {} if self.rotary is None else {"position_embeddings": self.rotary(hidden, positions)}
        for layer in self.layers:
            # SDPA is causal where it has no mask.
            hidden = layer(hidden_states=hidden, attention_mask=None, **turns)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return hidden if self.norm is None else self.lm_head(self.norm(hidden))


def mean_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return LEAST_LR + (LR - LEAST_LR) * 0.5 * (1 + math.cos(math.pi * done))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Trainer:
    """AdamW and clipping over the parameters that a rank has. `add`: sums a number over ranks that have others."""

    def __init__(self, model, add=lambda number: number):
        self.parameters = list(model.parameters())
        matrices, vectors = ([one for one in self.parameters if (one.dim() > 1) == large] for large in (True, False))
        self.optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
                                           betas=BETAS, eps=EPS, weight_decay=DECAY)
        self.add, self.norms = add, []

    def step(self, not_counted=()):
        """Ends a step. Gradients of the parameters in `not_counted` are counted by another rank."""
        for one in self.parameters:
            if hasattr(one.grad, "redistribute"):  # partial sums, where ranks see other parts of a sequence
                one.grad = one.grad.redistribute(placements=one.placements)
        squares = sum(whole(one.grad).double().square().sum() for one in self.parameters
                      if all(one is not other for other in not_counted))
        norm = math.sqrt(self.add(squares).item())
        for one in self.parameters:
            one.grad *= min(1.0, CLIP / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(len(self.norms))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.norms.append(norm)


def batches(tokens):
    for step in range(STEPS):
        rows = [tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(step * ROWS, (step + 1) * ROWS)]
        rows = torch.tensor(rows)
        yield rows[:, :-1], rows[:, 1:]


def train_whole(family, tokens, rank, ranks):
    model = Decoder(family, make_model(family))
    trainer, losses = Trainer(model), []
    for inputs, labels in batches(tokens):
        loss = mean_loss(model(inputs), labels)
        loss.backward()
        trainer.step()
        losses.append(loss.item())
    return losses, trainer.norms, model


def divide_by_tensors(model, mesh, sequence):
    """Divides the linear layers of a Decoder, or of a stage of one, over the ranks of a mesh with one axis."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, parallelize_module)

    between = Shard(1) if sequence else Replicate()
    plan = {}
    if model.embed is not None:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.lm_head is not None:
        plan["lm_head"] = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    for i in range(len(model.layers)):
        layer = {**{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
                 "self_attn.o_proj": RowwiseParallel(output_layouts=between),
                 **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
                 "mlp.down_proj": RowwiseParallel(output_layouts=between)}
        if sequence:
            layer.update({
                "input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
                "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": Shard(1)},
                                                desired_input_kwarg_layouts={"hidden_states": Replicate()}),
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))})
        plan.update({f"layers.{i}.{name}": style for name, style in layer.items()})
    if sequence and model.norm is not None:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    assert model.layers[0].self_attn.q_proj.weight.to_local().shape == (32 // mesh.size(), 32)


def train_tensor(family, tokens, rank, ranks, sequence):
    from torch.distributed.device_mesh import init_device_mesh

    model = Decoder(family, make_model(family))
    divide_by_tensors(model, init_device_mesh("cpu", (ranks,)), sequence)
    trainer, losses = Trainer(model), []
    for inputs, labels in batches(tokens):
        loss = mean_loss(model(inputs), labels)
        loss.backward()
        trainer.step()
        losses.append(loss.item())
    return losses, trainer.norms, model


def train_pipeline(family, tokens, rank, ranks, schedule):
    import torch.distributed as dist
    from torch.distributed import pipelining

    model = Decoder(family, make_model(family), rank, ranks)
    stage = pipelining.PipelineStage(model, rank, ranks, torch.device("cpu"))
    passes = getattr(pipelining, schedule)(stage, MICRO_BATCHES, loss_fn=mean_loss)
    # The first and the last stage have a copy each of a tied embedding, as Megatron-LM has.
    tied = family == "gpt2"
    embedding = model.embed.weight if model.embed is not None else model.lm_head.weight

    def add(squares):
        dist.all_reduce(squares)
        return squares

    trainer, losses = Trainer(model, add), []
    for inputs, labels in batches(tokens):
        parts = []
        passes.step(*([inputs] if rank == 0 else []), **({"target": labels, "losses": parts} if rank + 1 == ranks else {}))
        if tied:
            dist.all_reduce(embedding.grad)
        trainer.step([embedding] if tied and rank > 0 else [])
        loss = torch.stack([part.detach() for part in parts]).mean() if parts else torch.zeros(())
        dist.broadcast(loss, ranks - 1)
        losses.append(loss.item())
    return losses, trainer.norms, model


def divide_by_shards(model, mesh, mixed=False):
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # Gloo adds and cannot divide
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def train_combined(family, tokens, rank, ranks, sequence, shards):
    import torch.distributed as dist
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, shards, ranks // 2 // shards), mesh_dim_names=("pipeline", "shard", "tensor"))
    stages, stage = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
    model = Decoder(family, make_model(family), stage, 2)
    divide_by_tensors(model, mesh["tensor"], sequence)
    if shards > 1:
        divide_by_shards(model, mesh["shard"])
    passes = pipelining.Schedule1F1B(pipelining.PipelineStage(model, stage, 2, torch.device("cpu"), group=stages),
                                     MICRO_BATCHES, loss_fn=lambda *one: mean_loss(*one) / shards)

    def add(squares):
        dist.all_reduce(squares, group=stages)
        return squares

    trainer, losses = Trainer(model, add), []
    for inputs, labels in batches(tokens):
        own = torch.arange(ROWS).reshape(shards, -1)[mesh["shard"].get_local_rank()]
        parts, loss = [], torch.zeros(())
        passes.step(*([inputs[own]] if stage == 0 else []), **({"target": labels[own], "losses": parts} if stage else {}))
        trainer.step()
        if parts:
            loss = torch.stack([part.detach() for part in parts]).mean()
        dist.all_reduce(loss, group=mesh["shard"].get_group())
        dist.all_reduce(loss, group=stages)
        losses.append(loss.item())
    return losses, trainer.norms, model


def train_sharded(family, tokens, rank, ranks, replicas, mixed=False):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    axes = ("replicate", "shard") if replicas > 1 else ("shard",)
    mesh = init_device_mesh("cpu", (replicas, ranks // replicas) if replicas > 1 else (ranks,), mesh_dim_names=axes)
    model = Decoder(family, make_model(family))
    divide_by_shards(model, mesh, mixed)
    trainer, losses = Trainer(model), []
    for inputs, labels in batches(tokens):
        total = torch.zeros(())
        for rows in torch.arange(ROWS).reshape(ranks, 2, -1)[rank]:  # two micro-batches a rank
            loss = mean_loss(model(inputs[rows]), labels[rows]) / (2 * ranks)
            loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        trainer.step()
        losses.append(total.item())
    return losses, trainer.norms, model


def run_rank(rank, ranks, meeting, train, family, tokens, options, output):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    losses, norms, model = globals()[f"train_{train}"](family, tokens, rank, ranks, **options)
    weights = {name: whole(value).clone() for name, value in model.state_dict().items()}
    # A stage counts its blocks from 0; their names in the file are those of the whole model.
    if train in ("pipeline", "combined"):
        before = len(model.layers) if model.embed is None else 0  # of two stages
        weights = {name.replace(f"layers.{name.split('.')[1]}.", f"layers.{int(name.split('.')[1]) + before}.")
                   if name.startswith("layers.") else name: value for name, value in weights.items()}
    torch.save({"losses": losses, "norms": norms, "weights": weights}, output / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def with_torch(folder, ranks, train, family, tokens, **options):
    """Returns losses, norms and weights of the ranks, by the names of Decoder."""
    folder.mkdir()
    fork(ranks, run_rank, train, family, tokens, options, folder)
    results = [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
    for other in results[1:]:
        assert other["losses"] == results[0]["losses"], "ranks disagree"
    weights = {}
    for result in results:
        weights.update(result["weights"])
    return results[0]["losses"], results[0]["norms"], weights


def run_job(program, job, count):
    """Runs a job of `count` steps and returns what it says of each. Other tests may have jobs of the same name."""
    done = subprocess.run([program.path, "train", job, "--json"], capture_output=True, text=True,
                          env=dict(os.environ, MILLRACE_STATE_DIR=str(job.parent / "state")))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = [line for line in lines if "grad_norm" in line and "event" not in line]
    assert [line["step"] for line in steps] == list(range(1, count + 1)), done.stdout
    return steps


def language(count):
    """Tokens of a language with an order that a model can learn."""
    draw, tokens = random.Random(1), [5]
    while len(tokens) < count:
        tokens.append((tokens[-1] * 7 + draw.randrange(2)) % 20)
    return tokens


class Millrace:
    def __init__(self, program, folder, family, tokens):
        self.program, self.folder, self.family = program, folder, family
        (folder / "tokens.bin").write_bytes(megatron([tokens], 2)[0])
        (folder / "tokens.idx").write_bytes(megatron([tokens], 2)[1])
        make_model(family).save_pretrained(folder / "model")
        program("import", folder / "model", folder / "start")

    def train(self, name, ranks, parallel, micro_batch=ROWS // MICRO_BATCHES, precision="f32"):
        """Returns losses, norms and weights by the names of Decoder."""
        job = self.folder / f"{name}.yaml"
        job.write_text(f"""name: {name}
model: {{from: "{self.folder}/start"}}
data:
  sources: [{{url: "{self.folder}/tokens"}}]
  tokenizer: {TOKENIZER}
  sequence_length: {LENGTH}
  shuffle: {{window: 0}}
  threads: 1
train:
  steps: {STEPS}
  global_batch: {ROWS}
  micro_batch: {micro_batch}
  precision: {precision}
  optimizer: {{lr: {LR:f}, betas: {list(BETAS)}, eps: {EPS:.9f}, weight_decay: {DECAY}, clip_norm: {CLIP}}}
  schedule: {{name: cosine, warmup_steps: {WARMUP}, min_lr: {LEAST_LR:f}}}
  parallel: {{{parallel}}}
  threads: 1
checkpoint: {{url: "{self.folder}/{name}", every_steps: {STEPS}}}
run: {{processes_per_node: {ranks}}}
""")
        steps = run_job(self.program, job, STEPS)
        self.program("export", self.folder / name, self.folder / f"{name}-model")
        trained = type(make_model(self.family)).from_pretrained(self.folder / f"{name}-model", dtype=torch.float32)
        return ([line["loss"] for line in steps], [line["grad_norm"] for line in steps],
                Decoder(self.family, trained).state_dict())


def distances(run, exact):
    """Returns how far a run is from an exact one: the mean of the losses' relative distances, and the weights'.

    The losses are those of the first half. In the second, rounding has changed gradients by a tenth, and what a loss
    becomes is chance.
    """
    half = STEPS // 2
    losses = sum(abs(a - b) / b for a, b in zip(run[0][:half], exact[0])) / half
    weights = [(run[2][name] - value).norm().item() / value.norm().item() for name, value in exact[2].items()]
    return losses, sum(weights) / len(weights)


def compare(what, ours, theirs):
    """Compares two runs, each of losses, norms and weights."""
    assert len(ours[0]) == len(theirs[0]) == len(theirs[1]) == STEPS
    loss, norm = (max(abs(a - b) / b for a, b in zip(ours[i], theirs[i])) for i in range(2))
    assert ours[2].keys() == theirs[2].keys(), set(ours[2]) ^ set(theirs[2])
    weights = max(((ours[2][name] - value).norm() / value.norm()).item() for name, value in theirs[2].items())
    print(f"{what}: loss {ours[0][0]:.6f} -> {ours[0][-1]:.6f}; largest relative differences: losses {loss:.1e}, "
          f"gradient norms {norm:.1e}, weights {weights:.1e}", flush=True)
    for step, (a, b) in enumerate(zip(ours[0], theirs[0])):
        if abs(a - b) / b > LOSS_TOLERANCE:
            print(f"  step {step + 1}: {a:.9f}, PyTorch {b:.9f}")
    assert ours[0][-1] < 0.9 * ours[0][0], "the model learns nothing"
    assert max(ours[1]) > CLIP, "no step is clipped"
    assert loss <= LOSS_TOLERANCE and norm <= NORM_TOLERANCE and weights <= WEIGHT_TOLERANCE, what


def test_tensor(runs, folder, family, tokens):
    if family == "gpt2":
        return  # its queries, keys and values are one matrix: parallelize_module cannot divide that by heads
    compare(f"{family}, one rank", runs.train("one", 1, ""), with_torch(folder / "torch", 1, "whole", family, tokens))
    for sequence in (False, True):
        name = f"tensor-{sequence}".lower()
        compare(f"{family}, {name}", runs.train(name, 2, f"tensor: 2, sequence: {str(sequence).lower()}"),
                with_torch(folder / f"torch-{name}", 2, "tensor", family, tokens, sequence=sequence))


def test_pipeline(runs, folder, family, tokens):
    for ours, theirs in (("1f1b", "Schedule1F1B"), ("simple", "ScheduleGPipe")):
        compare(f"{family}, pipeline {ours}", runs.train(ours, 2, f"pipeline: 2, schedule: {ours}"),
                with_torch(folder / theirs, 2, "pipeline", family, tokens, schedule=theirs))


def test_sharded(runs, folder, family, tokens):
    for name, replicas in (("full", 1), ("hybrid", 2)):
        ranks = 2 * replicas
        compare(f"{family}, {name} shard", runs.train(name, ranks, f"data: {ranks}, shard: 2, zero: 3", ROWS // ranks // 2),
                with_torch(folder / f"torch-{name}", ranks, "sharded", family, tokens, replicas=replicas))


def test_mixed(runs, folder, family, tokens):
    exact = runs.train("exact", 1, "")
    ours = distances(runs.train("mixed", 2, "data: 2, zero: 3", ROWS // 4, precision="bf16"), exact)
    theirs = distances(with_torch(folder / "torch", 2, "sharded", family, tokens, replicas=1, mixed=True), exact)
    for what, mine, other, most in zip(("losses", "weights"), ours, theirs, (3, 1.5)):  # losses are few, weights many
        print(f"{family}, bfloat16: {what} {mine:.1e} from those in float32, PyTorch's {other:.1e}", flush=True)
        assert 0 < mine <= most * other, what


def test_combined(runs, folder, family, tokens):
    if family == "gpt2":
        return  # as in test_tensor
    layouts = {"tensor x pipeline": (4, "tensor: 2, pipeline: 2", False, 1),
               "tensor x pipeline, sequence": (4, "tensor: 2, pipeline: 2, sequence: true", True, 1),
               "tensor x pipeline x shard": (8, "tensor: 2, pipeline: 2, data: 2, zero: 3, sequence: true", True, 2)}
    for number, (name, (ranks, parallel, sequence, shards)) in enumerate(layouts.items()):
        compare(f"{family}, {name}",
                runs.train(f"combined-{number}", ranks, parallel, ROWS // MICRO_BATCHES // shards),
                with_torch(folder / f"torch-{number}", ranks, "combined", family, tokens, sequence=sequence, shards=shards))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["tensor", "pipeline", "sharded", "mixed", "combined"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    need("transformers").utils.logging.disable_progress_bar()
    need("torch.distributed.tensor.parallel")
    need("torch.distributed.pipelining")
    torch.set_num_threads(1)
    tokens = language(STEPS * ROWS * LENGTH + 1)
    for family in ("llama", "gpt2"):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            runs = Millrace(Program(pathlib.Path(arguments.millrace).resolve()), folder, family, tokens)
            globals()[f"test_{arguments.test}"](runs, folder, family, tokens)


if __name__ == "__main__":
    main()
