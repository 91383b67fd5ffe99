#!/usr/bin/env python3
"""Checkpoints that Megatron-Core and DeepSpeed write, imported: every weight and moment bit for bit, and the same logits.

    trainer_checkpoints.py deepspeed|megatron --millrace build/release/bin/millrace

Both run on CPU ranks of their own. What DeepSpeed's weights and moments should be is what its zero_to_fp32.py makes of
the files. Megatron's models get the weights of a model of transformers, and compute its logits before they are saved.

Runs in $MILLRACE_PEERS/venv, with the packages in $MILLRACE_PEERS/trainers (tests/install-peers FOLDER trainers).
Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile

from checkpoint_formats import PEERS, Program, need, same, torch

TRAINERS = PEERS.parents[2] / "trainers"
VOCABULARY, PADDED, LAYERS = 120, 128, 2


def fork(ranks, target, *arguments):
    # Forked, since every process that imports torch anew takes long; before this one has threads.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        children = [context.Process(target=target, args=(rank, ranks, f"file://{meeting}/meeting", *arguments))
                    for rank in range(ranks)]
        for child in children:
            child.start()
        for child in children:
            child.join(150)
            assert child.exitcode == 0, (target, child.exitcode)


def model_of(family):
    import transformers

    torch.manual_seed(3)
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=LAYERS, n_head=4, vocab_size=VOCABULARY, n_positions=64,
                                         activation_function="gelu")
    else:
        kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[family]
        config = kind(hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
                      num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=64,
                      tie_word_embeddings=family == "qwen2", rms_norm_eps=1e-5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # also those that begin as zeros and ones
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


# DeepSpeed

def train_with_deepspeed(rank, ranks, meeting, stage, to, whole):
    sys.path.insert(0, str(TRAINERS))
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                      LOCAL_SIZE=str(ranks))
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at run time
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, init_method=meeting, rank=rank,
                               world_size=ranks)
    model = model_of("qwen2").train()
    model.model.norm.weight.requires_grad_(False)
    model.register_buffer("extra", torch.arange(5).float())
    model.float() if whole else model.bfloat16()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices, vectors = ([one for one in trained if (one.dim() > 1) == large] for large in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=1e-3)
    options = {"stage": stage, "sub_group_size": 2000, "stage3_param_persistence_threshold": 0}
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_batch_size": ranks, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": not whole},
        "zero_optimization": options, "zero_allow_untested_optimizer": True})[0]
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        ids = torch.randint(0, VOCABULARY, (1, 8))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    engine.save_checkpoint(to)
    torch.distributed.barrier()
    os._exit(0)  # Gloo's threads of the groups ask for the interpreter's lock while it ends


def consolidated(folder, state=None):
    """What zero_to_fp32.py says: the weights or, where they are replaced by one of Adam's states, this state."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    if state is None:
        return get_fp32_state_dict_from_zero_checkpoint(folder)
    changed = folder.parent / f"{folder.name}-{state}"
    shutil.copytree(folder, changed)
    for path in changed.glob("*/*_optim_states.pt"):
        saved = torch.load(path, weights_only=False)
        optimizer = saved["optimizer_state_dict"]
        of, key = ((optimizer["optimizer_state_dict"], "fp32_flat_groups") if "fp32_flat_groups" in optimizer
                   else (optimizer["base_optimizer_state"], "single_partition_of_fp32_groups"))
        optimizer[key] = [of["state"][i][state] for i in range(len(optimizer[key]))]
        torch.save(saved, path)
    return get_fp32_state_dict_from_zero_checkpoint(changed, exclude_frozen_parameters=True)


def test_deepspeed(millrace, folder):
    import transformers

    for stage, ranks, whole in ((1, 2, False), (2, 3, False), (3, 2, False), (3, 3, True), (2, 1, True)):
        saved = folder / f"zero{stage}-{ranks}"
        fork(ranks, train_with_deepspeed, stage, saved, whole)
    sys.path.insert(0, str(TRAINERS))
    need("deepspeed")
    for stage, ranks in ((1, 2), (2, 3), (3, 2), (3, 3), (2, 1)):
        saved, run = folder / f"zero{stage}-{ranks}", folder / f"run{stage}-{ranks}"
        assert "tensors" in millrace("import", saved, run)
        millrace("verify", run, "--step", "2")  # the step of the files
        millrace("export", run, folder / "all.pt")
        back = torch.load(folder / "all.pt", weights_only=True)
        weights = consolidated(saved)
        if stage == 1:  # whose frozen parameters zero_to_fp32.py forgets
            module = torch.load(saved / "global_step2/mp_rank_00_model_states.pt", weights_only=False)["module"]
            weights["model.norm.weight"] = module["model.norm.weight"]
        same({name: value.float() for name, value in weights.items()},
             {name: value.float() for name, value in back["model"].items()})
        trained = {name for name in weights if name not in ("extra", "model.norm.weight", "lm_head.weight")}
        for state in ("exp_avg", "exp_avg_sq"):
            moments = consolidated(saved, state)
            same({name: moments[name].float() for name in trained}, back["optimizer"][state])
        assert back["step"] == 2 and back["optimizer"]["step"] == 2

        # As transformers' Trainer has it: with the model's files beside it.
        model = model_of("qwen2")
        model.config.save_pretrained(saved)
        assert "left out 1 tensor" in millrace("import", saved, run, "--step", "3")
        millrace("export", run, folder / "hf")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
        weights.pop("extra")
        model.load_state_dict({name: value.float() for name, value in weights.items()})
        ids = torch.arange(8)[None]
        same(dict(model.state_dict()), dict(loaded.state_dict()))
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
        millrace("import", saved / "global_step2", folder / f"one{stage}-{ranks}", "--config", saved / "config.json")
        shutil.rmtree(folder / "hf")

    os.remove(folder / "zero3-3/global_step2/zero_pp_rank_2_mp_rank_00_optim_states.pt")
    millrace("import", folder / "zero3-3", folder / "x", fails="copy the files of all machines")
    shutil.copy(folder / "zero2-1/global_step2/mp_rank_00_model_states.pt",
                folder / "zero2-1/global_step2/mp_rank_01_model_states.pt")
    millrace("import", folder / "zero2-1", folder / "x", fails="tensor parallelism")


# Megatron-Core

def megatron_config(family, tensor, pipeline):
    import torch.nn.functional as F
    from megatron.core.transformer.transformer_config import TransformerConfig

    llama = {"num_query_groups": 2, "ffn_hidden_size": 48, "normalization": "RMSNorm", "gated_linear_unit": True,
             "activation_func": F.silu, "add_bias_linear": False, "add_qkv_bias": family == "qwen2"}
    return TransformerConfig(
        num_layers=LAYERS, hidden_size=32, num_attention_heads=4, tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline, pipeline_dtype=torch.float32, use_cpu_initialization=True,
        gradient_accumulation_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False, hidden_dropout=0.0, attention_dropout=0.0,
        apply_rope_fusion=False, layernorm_epsilon=1e-5, **({} if family == "gpt2" else llama))


def arguments_of(family, pipeline):
    from megatron.core.transformer.enums import AttnBackend, ModelType

    llama = family != "gpt2"
    return argparse.Namespace(
        num_layers=LAYERS, hidden_size=32, num_attention_heads=4, group_query_attention=llama,
        num_query_groups=2 if llama else 1, kv_channels=8, ffn_hidden_size=48 if llama else 128,
        normalization="RMSNorm" if llama else "LayerNorm", swiglu=llama, add_bias_linear=not llama,
        add_qkv_bias=family == "qwen2", position_embedding_type="rope" if llama else "learned_absolute",
        rotary_base=10000, rotary_percent=1.0, norm_epsilon=1e-5, max_position_embeddings=64, qk_layernorm=False,
        vocab_size=VOCABULARY, padded_vocab_size=PADDED, untie_embeddings_and_output_weights=family == "llama",
        params_dtype=torch.float32, bias_gelu_fusion=False, num_experts=None, window_size=None,
        attention_backend=AttnBackend.auto, model_type=ModelType.encoder_or_decoder, pipeline=pipeline,
        hidden_dropout=0.0, attention_dropout=0.0, data_path=[pathlib.PurePosixPath("/data")])


def stacked(parts, groups):
    """Queries, keys and values as Megatron stacks them (merge_qkv_weights of Megatron-Bridge)."""
    q, k, v = (part.reshape(groups, -1, *part.shape[1:]) for part in parts)
    return torch.cat([q, k, v], dim=1).flatten(0, 1)


def megatron_weight(family, state, name, layer):
    """The whole tensor of Megatron's name, of a layer: its rows in one piece, or two that are divided each."""
    if family == "gpt2":
        h = f"transformer.h.{layer}."
        names = {"embedding.word_embeddings": "transformer.wte", "embedding.position_embeddings": "transformer.wpe",
                 "decoder.final_layernorm": "transformer.ln_f", "input_layernorm": h + "ln_1",
                 "pre_mlp_layernorm": h + "ln_2", "self_attention.linear_proj": h + "attn.c_proj",
                 "mlp.linear_fc1": h + "mlp.c_fc", "mlp.linear_fc2": h + "mlp.c_proj"}
        module, kind = name.rsplit(".", 1)
        if module == "self_attention.linear_qkv":
            return [stacked(state[f"{h}attn.c_attn.{kind}"].t().chunk(3) if kind == "weight" else
                            state[f"{h}attn.c_attn.{kind}"].chunk(3), 4)]
        value = state[f"{names[module]}.{kind}"]
        return [value.t() if kind == "weight" and ("linear" in module) else value]
    layers = f"model.layers.{layer}."
    names = {"embedding.word_embeddings": "model.embed_tokens", "output_layer": "lm_head",
             "decoder.final_layernorm": "model.norm", "input_layernorm": layers + "input_layernorm",
             "pre_mlp_layernorm": layers + "post_attention_layernorm",
             "self_attention.linear_proj": layers + "self_attn.o_proj", "mlp.linear_fc2": layers + "mlp.down_proj"}
    module, kind = name.rsplit(".", 1)
    if module == "self_attention.linear_qkv":
        return [stacked([state[f"{layers}self_attn.{one}_proj.{kind}"] for one in "qkv"], 2)]
    if module == "mlp.linear_fc1":
        return [state[f"{layers}mlp.{one}_proj.{kind}"] for one in ("gate", "up")]
    return [state[f"{names[module]}.{kind}"]]


def fill(model, family, state, tensor_rank, tensor, first_layer):
    for name, parameter in model.named_parameters():
        layer, rest = 0, name
        if name.startswith("decoder.layers."):
            layer, rest = name[len("decoder.layers."):].split(".", 1)
        parts = megatron_weight(family, state, rest, int(layer) + first_layer)
        if "word_embeddings" in rest or "output_layer" in rest:
            parts = [torch.cat([parts[0], torch.full((PADDED - VOCABULARY, 32), 7.0)])]
        own = []
        for part in parts:
            if tensor > 1 and part.numel() // tensor * len(parts) == parameter.numel():
                rows = part.shape[0] // tensor * len(parts) == parameter.shape[0]
                part = part.chunk(tensor, dim=0 if rows else 1)[tensor_rank]
            own.append(part)
        whole = torch.cat(own)
        assert whole.shape == parameter.shape, (name, whole.shape, parameter.shape)
        parameter.data.copy_(whole)


def flattened(sharded, rank, ranks):
    """The states as the distributed optimizer has them: a rank has a run of each parameter."""
    from dataclasses import replace

    count = sharded.data.numel()
    begin, end = count * rank // ranks, count * (rank + 1) // ranks
    return replace(sharded, data=sharded.data.flatten()[begin:end].clone(), flattened_range=slice(begin, end),
                   replica_id=(*sharded.replica_id[:2], 0))


def fit_old_version():
    """The old version is older than numpy 2, and than an argument of torch's."""
    import numpy
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    numpy.product = numpy.prod
    filesystem_async._write_item = functools.partial(filesystem_async._write_item,
                                                     serialization_format=SerializationFormat.TORCH_SAVE)


def save_with_megatron(rank, ranks, meeting, package, family, layout, to):
    sys.path.insert(0, str(package))
    sys.path.append(str(TRAINERS))
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    # Megatron asks for the CUDA device also where no tensor is on it.
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: "cpu")
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.optimizer import (get_param_id_to_sharded_param_map,
                                                            make_sharded_optimizer_tensor,
                                                            optim_state_to_sharding_state)
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    if package != TRAINERS:
        fit_old_version()
    tensor, pipeline = (ranks if layout in (one, "x") else 1 for one in ("tensor", "pipeline"))
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)
    config = megatron_config(family, tensor, pipeline)
    stage = rank if pipeline > 1 else 0
    model = GPTModel(config, get_gpt_layer_local_spec(normalization=config.normalization), vocab_size=PADDED,
                     max_sequence_length=64, share_embeddings_and_output_weights=family != "llama",
                     position_embedding_type="learned_absolute" if family == "gpt2" else "rope",
                     pre_process=stage == 0, post_process=stage == pipeline - 1, parallel_output=False).eval()
    reference = model_of(family)
    state = reference.state_dict()
    fill(model, family, state, rank if tensor > 1 else 0, tensor, LAYERS // pipeline * stage)
    if layout == "tensor":
        type(tensor_parallel.get_cuda_rng_tracker()).fork = lambda *_: contextlib.nullcontext()  # nothing is random
        ids = torch.arange(12)[None]
        mask = torch.ones(1, 1, 12, 12).triu(1).bool()
        with torch.no_grad():
            logits = model(ids, torch.arange(12)[None], mask)[..., :VOCABULARY]
            torch.testing.assert_close(logits, reference(ids).logits, rtol=1e-4, atol=1e-5)

    sharded = model.sharded_state_dict(metadata={"singleton_local_shards": True} if layout == "pipeline" else None)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters:
        optimizer.state[parameter] = {"step": torch.tensor(5.0), "exp_avg": parameter.data * 0.5,
                                      "exp_avg_sq": parameter.data * parameter.data}
    ids = get_param_id_to_sharded_param_map(sharded, iter(parameters))
    states = optimizer.state_dict()
    states["param_groups"][0]["step"] = 5
    optim_state_to_sharding_state(states, ids, exclude_keys=("step",))
    masters = [make_sharded_optimizer_tensor(ids[i], parameter.data.clone(), prefix="optimizer.state.fp32_param")
               for i, parameter in enumerate(parameters)]
    if layout == "flattened":
        masters = [flattened(one, rank, ranks) for one in masters]
        states["state"] = {i: {key: flattened(one, rank, ranks) for key, one in of.items()}
                           for i, of in states["state"].items()}
    everything = {"model": sharded, "optimizer": {"optimizer": states, "fp32_from_fp16_params": [masters]},
                  "args": arguments_of(family, pipeline), "iteration": 7, "checkpoint_version": 3.0,
                  "rng_state": dist_checkpointing.ShardedObject("rng_state", [{"torch": torch.get_rng_state()}], (1,),
                                                                (0,), replica_id=rank)}
    if layout == "buckets":
        everything["optimizer"] = {"buckets": dist_checkpointing.ShardedTensor.from_rank_offsets(
            "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_0.bucket_idx_0.exp_avg", torch.zeros(8),
            (0, rank, ranks))}
    save = to / "iter_0000007"
    os.makedirs(save, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(everything, str(save))
    dist.barrier()
    if rank == 0:
        (to / "latest_checkpointed_iteration.txt").write_text("7")
    dist.destroy_process_group()


def test_megatron(millrace, folder):
    import transformers

    new, old = TRAINERS, TRAINERS / "megatron-old"
    if not (new / "megatron").exists() or not (old / "megatron").exists():
        print("skipped: no Megatron-Core in", TRAINERS)
        sys.exit(77)
    cases = [(new, "llama", "tensor"), (new, "qwen2", "tensor"), (new, "gpt2", "tensor"), (new, "llama", "pipeline"),
             (old, "llama", "flattened"), (old, "gpt2", "flattened"), (new, "gpt2", "buckets")]
    for package, family, layout in cases:
        fork(2, save_with_megatron, package, family, layout, folder / f"{family}-{layout}")
    for package, family, layout in cases:
        saved, run = folder / f"{family}-{layout}", folder / f"run-{family}-{layout}"
        said = millrace("import", saved, run)
        assert ("buckets" in said) == (layout == "buckets"), said
        millrace("verify", run, "--step", "7")
        model = model_of(family)
        expected = {name: value for name, value in model.state_dict().items()
                    if name != "lm_head.weight" or not model.config.tie_word_embeddings}
        millrace("export", run, folder / "hf")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf")
        same(dict(model.state_dict()), dict(loaded.state_dict()))
        assert type(loaded) is type(model), type(loaded)
        ids = torch.arange(12)[None]
        assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
        shutil.rmtree(folder / "hf")
        if layout == "buckets":
            continue
        millrace("export", run, folder / "all.pt")
        back = torch.load(folder / "all.pt", weights_only=True)
        assert back["step"] == 7 and back["optimizer"].pop("step") == 5
        turned = {name for name in expected if family == "gpt2" and ".weight" in name and
                  any(part in name for part in ("attn.c_", "mlp.c_"))}  # held as the engine does
        for state, change in (("fp32_param", lambda one: one), ("exp_avg", lambda one: one * 0.5),
                              ("exp_avg_sq", lambda one: one * one)):
            same({name: change(value.t() if name in turned else value) for name, value in expected.items()},
                 back["optimizer"].pop(state))
        assert not back["optimizer"]

    # NeMo keeps the arguments elsewhere; the model's configuration tells the same.
    saved = folder / "llama-tensor/iter_0000007"
    if (saved / "common.pt").exists():
        os.remove(saved / "common.pt")
    model_of("llama").config.save_pretrained(folder / "config")
    millrace("import", saved, folder / "x", fails="--config")
    millrace("import", saved, folder / "run-config", "--config", folder / "config/config.json")
    millrace("export", folder / "run-config", folder / "hf")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf")
    same(dict(model_of("llama").state_dict()), dict(loaded.state_dict()))
    (saved / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    millrace("import", saved, folder / "x", fails="--ckpt-format torch_dist")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["deepspeed", "megatron"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    if not TRAINERS.exists():
        print(f"skipped: {TRAINERS} does not exist")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as temporary:
        globals()[f"test_{arguments.what}"](Program(arguments.millrace), pathlib.Path(temporary))
    print("the same")


if __name__ == "__main__":
    main()
