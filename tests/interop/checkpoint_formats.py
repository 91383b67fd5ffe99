#!/usr/bin/env python3
"""Checkpoints against the programs they come from and go to: torch.save, torch.distributed.checkpoint, transformers, and PEFT's files.

    checkpoint_formats.py torch|dcp|transformers|states|peft [--in-bucket] --millrace build/release/bin/millrace
    checkpoint_formats.py serve|families --millrace build/release/bin/millrace

With --in-bucket everything lies in a bucket of a `millrace s3d`: checkpoints, and what torch saved or is to load. `serve`
imports a model into one, serves it, trains from it and serves what came of it. `families` does that with the decoders that
differ from Llama in their blocks.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from s3d_interop import Endpoint

SKIPPED = 77
BUCKET = "s3://interop"
PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "venv/bin/python"
if PEERS.exists() and pathlib.Path(sys.executable) != PEERS and "MILLRACE_IN_VENV" not in os.environ:
    os.environ["MILLRACE_IN_VENV"] = "1"
    os.execv(PEERS, [str(PEERS), *sys.argv])
sys.path.append(str(PEERS.parents[2] / "peft"))  # of other versions than the venv's, if at all
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
TYPES = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 float8_e4m3fn "
         "float8_e5m2").split()


def need(module):
    try:
        return __import__(module, fromlist=["x"])
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(SKIPPED)


torch = need("torch")


class Program:
    environment = None  # this process's

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, fails=None):
        done = subprocess.run([self.path, "ckpt", *map(str, arguments)], env=self.environment, capture_output=True,
                              text=True)
        if fails is None:
            assert done.returncode == 0, (arguments, done.stderr)
        else:
            assert done.returncode != 0 and fails in done.stderr, (arguments, done.returncode, done.stderr)
        return done.stdout


class InBucket(Program):
    """The same with all paths in a bucket: sources are copied there before, what was exported comes back afterwards."""

    def __init__(self, path, endpoint, folder):
        super().__init__(path)
        self.endpoint, self.folder = endpoint, folder
        self.environment = dict(endpoint.environment, AWS_ENDPOINT_URL=endpoint.url)
        self.run("mb", BUCKET)

    def run(self, *arguments):
        subprocess.run([self.path, "--quiet", *map(str, arguments)], env=self.environment, check=True)

    def url(self, path):
        return f"{BUCKET}/{path.relative_to(self.folder)}"

    def __call__(self, command, *arguments, fails=None):
        if command == "import":
            source = arguments[0]
            self.run(*(["sync", "--delete"] if source.is_dir() else ["cp"]), source, self.url(source))
        places = [self.url(one) if isinstance(one, pathlib.Path) else one for one in arguments]
        done = super().__call__(command, *places, fails=fails)
        if command == "export" and fails is None:
            to = arguments[1]
            whole = to.suffix in (".pt", ".gguf")
            if not whole:
                to.mkdir(exist_ok=True)
            self.run(*(["cp"] if whole else ["sync", "--delete"]), self.url(to), to)
        return done


def same(a, b, path=""):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, (path, a.dtype, b.dtype, a.shape, b.shape)
        raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
        assert torch.equal(*raw), (path, a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), (path, set(a) ^ set(b))
        for key in a:
            same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), (path, a, b)
        for i, pair in enumerate(zip(a, b)):
            same(*pair, f"{path}/{i}")
    else:
        assert type(a) is type(b) and a == b, (path, a, b)


def training_state():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 7)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5, "rng": torch.get_rng_state()}


def test_torch(millrace, folder):
    a = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {
        **training_state(),
        "types": {name: torch.ones(3, 2).to(getattr(torch, name)) for name in TYPES},
        "views": [a, a.t(), (a[1], a[:, ::2]), torch.ones(1, 3).expand(4, 3)],
        "tied": {"one": a, "other": a},
        "parameter": torch.nn.Parameter(a.bfloat16()),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 3),
        "plain": {"list": [1, 2.5, "x", None, True, (1, [2])], "bytes": b"\x00\xff\x80", "large": 2**40, "negative": -5,
                  "unsigned": 2**64 - 1, "infinite": float("inf"), "nothing": {}, 7: "int key"},
        "with/slash %": torch.ones(2),
    }
    torch.save(state, folder / "state.pt")
    millrace("import", folder / "state.pt", folder / "run")
    millrace("verify", folder / "run")
    millrace("export", folder / "run", folder / "back.pt")
    back = torch.load(folder / "back.pt", weights_only=True)
    same(state, back)
    assert back["tied"]["one"].data_ptr() == back["tied"]["other"].data_ptr(), "tied tensors stay tied"
    mapped = torch.load(folder / "back.pt", weights_only=True, mmap=True)
    same(state, mapped)
    millrace("export", folder / "run", folder / "model.pt", "--group", "model")
    same(dict(state["model"]), torch.load(folder / "model.pt", weights_only=True))
    millrace("import", folder / "model.pt", folder / "run", "--step", "1", "--group", "model")
    millrace("export", folder / "run", folder / "again.pt", "--step", "1")
    same({"model": dict(state["model"])}, torch.load(folder / "again.pt", weights_only=True))

    torch.save({"w": a, "args": argparse.Namespace(lr=0.5, out=folder)}, folder / "script.pt")
    millrace("import", folder / "script.pt", folder / "script")
    millrace("export", folder / "script", folder / "script-back.pt")
    same({"w": a, "args": {"lr": 0.5, "out": str(folder)}}, torch.load(folder / "script-back.pt", weights_only=True))
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    millrace("import", folder / "module.pt", folder / "x", fails="torch.nn.modules.linear.Linear")
    torch.save(state["model"], folder / "old.pt", _use_new_zipfile_serialization=False)
    millrace("import", folder / "old.pt", folder / "x", fails="torch 1.6")
    torch.serialization.set_crc32_options(False)
    torch.save(state, folder / "unsummed.pt")
    millrace("import", folder / "unsummed.pt", folder / "unsummed")


def save_as_rank(rank, ranks, meeting, to):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    rows, columns, both = (torch.arange(60, dtype=torch.float32).reshape(10, 6) + i for i in range(3))
    dcp.save({"rows": distribute_tensor(rows, mesh, [Shard(0)]), "columns": distribute_tensor(columns, mesh, [Shard(1)]),
              "both": both, "step": 3}, checkpoint_id=to)
    dist.destroy_process_group()


def save_under_ranks(folder, ranks, to):
    # Forked, since every process that imports torch anew takes long; before this one has threads.
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=save_as_rank, args=(rank, ranks, folder / "meeting", to)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0, child.exitcode


def test_dcp(millrace, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    save_under_ranks(folder, 2, folder / "ranks")
    a = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {**training_state(), "types": {name: torch.ones(3, 2).to(getattr(torch, name)) for name in TYPES},
             "mixed": [a, a.t(), torch.tensor(1.5)], "plain": [1, (2.5, None), "x", b"\xff"], "odd": {1, 2},
             "empty": torch.empty(0, 3)}
    dcp.save(state, checkpoint_id=folder / "saved", no_dist=True)
    millrace("import", folder / "saved", folder / "run")
    millrace("verify", folder / "run")
    for size in ("5GB", "1KB"):
        millrace("export", folder / "run", folder / "back", "--to", "dcp", "--file-size", size)
        dcp_to_torch_save(folder / "saved", folder / "saved.pt")
        dcp_to_torch_save(folder / "back", folder / "back.pt")
        saved, back = (torch.load(folder / name, weights_only=False) for name in ("saved.pt", "back.pt"))
        back.pop("millrace_meta")
        same(saved, back)
    loaded = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}, "step": 0}
    dcp.load(loaded, checkpoint_id=folder / "back", no_dist=True)
    same({"model": dict(state["model"]), "step": 5}, loaded)

    millrace("import", folder / "ranks", folder / "run", "--step", "1")
    shown = [json.loads(line) for line in millrace("show", folder / "run", "--step", "1", "--json").splitlines()]
    assert {one["tensor"]: one["pieces"] for one in shown if "tensor" in one} == {"rows": 2, "columns": 2, "both": 1}
    millrace("export", folder / "run", folder / "whole", "--to", "dcp", "--step", "1")
    loaded = {name: torch.zeros(10, 6) for name in ("rows", "columns", "both")} | {"step": 0}
    dcp.load(loaded, checkpoint_id=folder / "whole", no_dist=True)
    whole = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    same({"rows": whole, "columns": whole + 1, "both": whole + 2, "step": 3}, loaded)
    os.remove(folder / "saved/.metadata")
    millrace("import", folder / "saved", folder / "x", "--from", "dcp", fails="interrupted")


def tiny_models(transformers):
    common = dict(vocab_size=96, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    yield transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **common))
    yield transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **common))
    yield transformers.GPTJForCausalLM(transformers.GPTJConfig(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64, **common))
    yield transformers.BertForMaskedLM(transformers.BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, **common))
    for make in variants(transformers, dict(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, **common)).values():
        yield make()


def variants(transformers, sizes):
    """Functions that make models of decoders with blocks of their own, by the name of the family."""
    hf, heads = transformers, {**sizes, "head_dim": 8}
    gemma = {**heads, "tie_word_embeddings": False}  # tied and of large random weights, they repeat their last token
    return {
        "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**sizes)),
        "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(
            embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6, logits_scaling=2.5, **sizes)),
        "smollm3": lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(
            no_rope_layer_interval=2, use_sliding_window=True, sliding_window=8, **sizes)),
        # Long positions from the first token on.
        "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(
            partial_rotary_factor=0.5, original_max_position_embeddings=4, sliding_window=8, rope_parameters=dict(
                rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.2], long_factor=[1.5, 4.0]), **sizes)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(
            query_pre_attn_scalar=6, sliding_window=8, attn_logit_softcapping=3.0, final_logit_softcapping=5.0, **gemma)),
        "gemma3_text": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(
            query_pre_attn_scalar=6, sliding_window=8, layer_types=["sliding_attention", "full_attention"], **gemma)),
        "glm4": lambda: hf.Glm4ForCausalLM(hf.Glm4Config(**heads)),
    }


def test_transformers(millrace, folder):
    transformers = need("transformers")
    torch.manual_seed(1)
    for model in tiny_models(transformers):
        model = model.to(torch.bfloat16)
        family, kind = model.config.model_type, type(model)
        place = folder / family
        expected = dict(model.state_dict())
        model.save_pretrained(place / "saved", max_shard_size="20KB")
        assert (place / "saved/model.safetensors.index.json").exists()
        (place / "saved/tokenizer.json").write_text('{"version": "1.0"}\n')
        millrace("import", place / "saved", place / "run")
        for size in ("5GB", "20KB"):
            millrace("export", place / "run", place / "back", "--file-size", size)
            for name in ("config.json", "tokenizer.json", "generation_config.json"):
                saved = place / "saved" / name
                assert not saved.exists() or saved.read_bytes() == (place / "back" / name).read_bytes(), name
            back, notes = kind.from_pretrained(place / "back", dtype=torch.bfloat16, output_loading_info=True)
            assert not notes["missing_keys"] and not notes["unexpected_keys"], (family, notes)
            same(expected, dict(back.state_dict()))
            same(load_folder(place / "saved"), load_folder(place / "back"))

        # What older versions saved: a pickle, with tied weights twice and what is computed.
        old = {**expected, **computed(family, expected)}
        legacy = place / "legacy"
        legacy.mkdir()
        (legacy / "config.json").write_bytes((place / "saved/config.json").read_bytes())
        torch.save(old, legacy / "pytorch_model.bin")
        report = json.loads(millrace("import", legacy, place / "run", "--step", "1", "--json"))
        assert report["left_out"] >= len(computed(family, expected)), report
        millrace("export", place / "run", place / "modern", "--step", "1")
        same(load_folder(place / "saved"), load_folder(place / "modern"))

        # The model without its head names its tensors without the prefix.
        base = model.base_model
        base.save_pretrained(place / "base")
        millrace("import", place / "base", place / "run", "--step", "2")
        millrace("export", place / "run", place / "based", "--step", "2")
        names = load_folder(place / "based")
        assert all(name.startswith(model.base_model_prefix + ".") for name in names), list(names)[:3]
        based = type(base).from_pretrained(place / "based", dtype=torch.bfloat16).state_dict()
        same(dict(base.state_dict()), {name: based[name] for name in base.state_dict()})


def computed(family, state):
    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    return {"gpt2": {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)},
            "gptj": {"transformer.h.1.attn.bias": mask, "transformer.h.1.attn.masked_bias": torch.tensor(-1e9)},
            "llama": {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
            "bert": {"bert.embeddings.position_ids": torch.arange(64)[None]}}.get(family, {})


def load_folder(folder):
    from safetensors.torch import load_file

    return {name: tensor for path in sorted(folder.glob("model*.safetensors")) for name, tensor in load_file(path).items()}


def meta_state(model):
    """A Llama of transformers as Meta's code and torchtitan have it: RoPE turns neighbouring rows of a head."""
    names = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output", "self_attn.q_proj": "attention.wq",
             "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    state = {"rope.freqs": torch.ones(4)}
    for name, tensor in model.state_dict().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = tensor.shape[0] // 8
            tensor = tensor.view(heads, 2, 4, -1).transpose(1, 2).reshape(tensor.shape).contiguous()
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[name.replace("model.layers", "layers")] = tensor
    return state


def test_states(millrace, folder):
    """Models in the states of trainers: alone, below a key beside an optimizer's state, under Meta's names."""
    transformers = need("transformers")
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(1)
    for model in tiny_models(transformers):
        family, expected = model.config.model_type, dict(model.state_dict())
        place = folder / family
        place.mkdir()
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(place)
        beside = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "step": 7}
        states = {"alone": expected, "below": {"model": expected, **beside},
                  "wrapped": {"state_dict": {f"module._orig_mod.{name}": value for name, value in expected.items()}, **beside}}
        if family == "llama":
            states["meta"] = meta_state(model)
        for number, (name, state) in enumerate(states.items()):
            torch.save(state, place / f"{name}.pt")
            dcp.save(state, checkpoint_id=place / name, no_dist=True)
            for step, source in enumerate((place / f"{name}.pt", place / name), 2 * number):
                millrace("import", source, place / "run", "--step", step, "--config", str(place / "config.json"))
                back = place / f"back-{step}"
                millrace("export", place / "run", back, "--step", step)
                loaded, notes = type(model).from_pretrained(back, dtype=torch.float32, output_loading_info=True)
                assert not notes["missing_keys"] and not notes["unexpected_keys"], (family, name, notes)
                same(expected, dict(loaded.state_dict()))
        torch.save({name: value for name, value in expected.items() if "norm" not in name.lower() and "ln_" not in name},
                   place / "less.pt")
        millrace("import", place / "less.pt", place / "x", "--config", str(place / "config.json"), fails="lacks the weight")


def test_peft(millrace, folder):
    safetensors = need("safetensors.torch")
    torch.manual_seed(1)
    saved = folder / "saved"
    saved.mkdir()
    name = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
    weights = {name.format(layer, matrix, part): torch.randn(*((8, 32) if part == "A" else (32, 8)), dtype=torch.bfloat16)
               for layer in range(2) for matrix in ("q_proj", "v_proj") for part in "AB"}
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": 8, "lora_alpha": 16,
              "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "bias": "none", "inference_mode": True}
    safetensors.save_file(weights, saved / "adapter_model.safetensors", {"format": "pt"})
    (saved / "adapter_config.json").write_text(json.dumps(config, indent=2))
    millrace("import", saved, folder / "run")
    millrace("export", folder / "run", folder / "back", "--to", "peft")
    same(weights, safetensors.load_file(folder / "back/adapter_model.safetensors"))
    assert (saved / "adapter_config.json").read_bytes() == (folder / "back/adapter_config.json").read_bytes()
    millrace("export", folder / "run", folder / "model", fails="`millrace ckpt merge`")

    # As a pickle, as PEFT once saved them.
    os.remove(saved / "adapter_model.safetensors")
    torch.save(weights, saved / "adapter_model.bin")
    millrace("import", saved, folder / "run", "--step", "1")
    millrace("export", folder / "run", folder / "back", "--to", "peft", "--step", "1")
    same(weights, safetensors.load_file(folder / "back/adapter_model.safetensors"))

    try:
        import peft
        import transformers
    except ImportError as error:
        print(f"without PEFT's own loader: {error}")
        return
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4))
    loaded = peft.PeftModel.from_pretrained(model, folder / "back", autocast_adapter_dtype=False)
    same(weights, {name: tensor.to(torch.bfloat16) for name, tensor in peft.get_peft_model_state_dict(loaded).items()})


PROMPT = "the mill turns the stone and the grain is flour"


def tiny_model(transformers, family, vocabulary, silent):
    """Of random weights, yet sure of what it says; it never says `silent` tokens."""
    torch.manual_seed(3)
    common = dict(vocab_size=vocabulary, bos_token_id=0, eos_token_id=1, initializer_range=0.5)
    llama = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=128, **common)
    gpt = dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common)
    model = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama)),
        # Within its positions, so that the scaling matters.
        "llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(head_dim=128, rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=32), **llama)),
        "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=8, **llama)),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            head_dim=8, use_sliding_window=True, sliding_window=8, max_window_layers=1, **llama)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt)),
        "gptj": lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(rotary_dim=4, **gpt)),
        # The row of padding is zero. That of <s> must not be: norms behind layers make rounding errors of it large.
        **variants(transformers, {"pad_token_id": 1, **llama}),
    }[family]()
    with torch.no_grad():
        model.lm_head.weight[silent] = 0
    return model.eval()


def greedy(model, ids, count=24):
    prompt = torch.tensor([ids])
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count, pad_token_id=0)
    return made[0, len(ids):].tolist()


class Server:
    """`millrace serve` of a URL, until the block ends."""

    def __init__(self, millrace, url, *flags):
        self.port_file = millrace.folder / "serve-port"
        self.port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen([millrace.path, "serve", url, "--listen", "127.0.0.1:0", "--port-file", self.port_file,
                                         "--threads", "1", *flags], env=millrace.environment)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while not self.port_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "millrace serve did not start"
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(30) == 0

    def complete(self, prompt, count=24):
        body = json.dumps({"prompt": prompt, "max_tokens": count, "temperature": 0}).encode()
        url = f"http://127.0.0.1:{self.port_file.read_text().strip()}/v1/completions"
        with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
            return json.load(answer)


def fast_tokenizer(transformers, tokenizers):
    """Bytes and some merges, texts begin with <s>: the file says so, and nothing else does."""
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([PROMPT] * 10, trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def train_one_step(millrace, folder, model, expected, source, ranks=1):
    """A run that begins with a model and its tokenizer, of one step too small to change much, exported and served."""
    name = f"tuned-{source.removesuffix('.gguf')}"
    (folder / "job.yaml").write_text(f"""name: {name}
model: {{from: "{BUCKET}/{source}"}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{BUCKET}/{source}", sequence_length: 32}}
train:
  steps: 1
  global_batch: 2
  micro_batch: 2
  optimizer: {{lr: 1.0e-12, weight_decay: 0}}
  parallel: {{tensor: {ranks}, sequence: {"true" if ranks > 1 else "false"}}}
  threads: 1
checkpoint: {{url: "{BUCKET}/{name}", every_steps: 1}}
run: {{processes_per_node: {ranks}}}
""")
    environment = dict(millrace.environment or os.environ, MILLRACE_STATE_DIR=str(folder / "state"))
    subprocess.run([millrace.path, "train", folder / "job.yaml"], env=environment, check=True,
                   stdout=subprocess.DEVNULL)
    millrace("export", folder / name, folder / f"{name}-back")
    back, info = type(model).from_pretrained(folder / f"{name}-back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    for key, weight in model.state_dict().items():
        assert torch.allclose(weight, back.state_dict()[key], rtol=0, atol=1e-11), key
    with Server(millrace, f"{BUCKET}/{name}", "--add-bos", "on") as server:
        assert server.complete(PROMPT)["choices"][0]["text"] == expected, source


def serve_family(millrace, folder, tokenizer, family):
    """A model of another family, and a layout of two ranks that divide it."""
    transformers = need("transformers")
    odd = [i for i in range(2, len(tokenizer)) if not tokenizer.decode([i]).isascii()]
    model = tiny_model(transformers, family, len(tokenizer), odd)
    model.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    millrace("import", folder / family, folder / f"{family}-run")
    expected = tokenizer.decode(greedy(model, tokenizer(PROMPT)["input_ids"]), skip_special_tokens=True)
    with Server(millrace, f"{BUCKET}/{family}-run") as server:
        assert server.complete(PROMPT)["choices"][0]["text"] == expected, family
    train_one_step(millrace, folder, model, expected, f"{family}-run", ranks=2)


def test_families(millrace, folder):
    transformers, tokenizers = need("transformers"), need("tokenizers")
    tokenizer = fast_tokenizer(transformers, tokenizers)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": PROMPT}) + "\n" for _ in range(50)))
    for family in variants(transformers, {}):
        serve_family(millrace, folder, tokenizer, family)


def test_serve(millrace, folder):
    transformers, tokenizers, sentencepiece = need("transformers"), need("tokenizers"), need("sentencepiece")
    tokenizer = fast_tokenizer(transformers, tokenizers)
    odd = [i for i in range(2, len(tokenizer)) if not tokenizer.decode([i]).isascii()]
    model = tiny_model(transformers, "llama", len(tokenizer), odd)
    model.save_pretrained(folder / "fast")
    tokenizer.save_pretrained(folder / "fast")
    millrace("import", folder / "fast", folder / "x")
    ids = tokenizer(PROMPT)["input_ids"]
    assert ids[0] == 0, ids
    expected = tokenizer.decode(greedy(model, ids), skip_special_tokens=True)
    with Server(millrace, BUCKET + "/x") as server:
        answer = server.complete(PROMPT)
        assert answer["choices"][0]["text"] == expected, (answer, expected)
        assert answer["usage"]["prompt_tokens"] == len(ids), answer
        assert server.complete(ids)["choices"][0]["text"] == expected, "the prompt as ids"

    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": PROMPT}) + "\n" for _ in range(50)))
    train_one_step(millrace, folder, model, expected, "x")

    for family in ("mistral", "qwen3", "gpt2", "gptj"):
        serve_family(millrace, folder, tokenizer, family)

    # A GGUF file, read in place: its tokenizer is byte-level, and its positions are scaled as those of Llama 3.1.
    model = tiny_model(transformers, "llama3", len(tokenizer), odd)
    model.save_pretrained(folder / "llama3")
    tokenizer.save_pretrained(folder / "llama3")
    millrace("import", folder / "llama3", folder / "llama3-run")
    millrace("export", folder / "llama3-run", folder / "llama3.gguf")
    expected = tokenizer.decode(greedy(model, ids), skip_special_tokens=True)
    with Server(millrace, f"{BUCKET}/llama3.gguf") as server:
        answer = server.complete(PROMPT)
        assert answer["choices"][0]["text"] == expected, (answer, expected)
        assert answer["usage"]["prompt_tokens"] == len(ids), answer
    train_one_step(millrace, folder, model, expected, "llama3.gguf")

    # With SentencePiece's file alone.
    slow = folder / "slow"
    slow.mkdir()
    millrace.run("tokenizer", "train", "--vocab-size", "290", "--input", folder / "corpus.jsonl", "--output",
                 slow / "tokenizer.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(slow / "tokenizer.model"))
    silent = [i for i in range(pieces.get_piece_size()) if pieces.is_byte(i)]
    model = tiny_model(transformers, "llama", pieces.get_piece_size(), silent)
    model.generation_config.eos_token_id = pieces.eos_id()
    model.save_pretrained(slow)
    millrace("import", slow, folder / "slow-run")
    expected = pieces.decode(greedy(model, [pieces.bos_id(), *pieces.encode(PROMPT)]))
    with Server(millrace, BUCKET + "/slow-run") as server:
        text = server.complete(PROMPT)["choices"][0]["text"]
        assert text.strip() == expected.strip(), (text, expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["torch", "dcp", "transformers", "states", "peft", "serve", "families"])
    parser.add_argument("--in-bucket", action="store_true")
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, test = pathlib.Path(temporary), globals()[f"test_{arguments.what}"]
        if not (arguments.in_bucket or arguments.what in ("serve", "families")):
            test(Program(arguments.millrace), folder)
        else:
            with Endpoint(arguments.millrace, folder) as endpoint:
                test(InBucket(arguments.millrace, endpoint, folder), folder)
    print("the same")


if __name__ == "__main__":
    main()
