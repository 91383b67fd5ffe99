#!/usr/bin/env python3
"""Compares quantized models with those of bitsandbytes and compressed-tensors: the bytes in files, and QLoRA runs beside PEFT's.

    quantized_models.py files|train|fp8 --millrace build/release/bin/millrace

| test  | what                                                                                                 |
|-------|------------------------------------------------------------------------------------------------------|
| files | `ckpt export --quantize` writes the codes that bitsandbytes makes; transformers loads the folder, and |
|       | `ckpt merge` adds an adapter to what the codes stand for, as PEFT does                                |
| train | 30 steps of adapters over an nf4 base against a loop with PEFT, from the folder that transformers    |
|       | saved with 4-bit weights, and from the plain one, whose codes PEFT's loop has from `ckpt export`      |
| fp8   | `ckpt export --quantize fp8` writes the codes that compressed-tensors makes, and transformers opens   |
|       | the folder with the numbers that they stand for                                                      |

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import tempfile

import lora_peft
from checkpoint_formats import Program, need, torch
from lora_peft import LENGTH, LOSS_TOLERANCE, ADAPTER_TOLERANCE, ROWS, Runs, adapter_of, name_of, train_with_peft
from parallel_torch import language, make_model

STEPS = 30
LLAMA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
GPT2 = {"r": 8, "lora_alpha": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
CASES = {"files": [("llama", LLAMA), ("gpt2", GPT2)],  # LoraConfig's arguments
         "fp8": [("llama", None)],
         "train": [("llama", LLAMA), ("gpt2", GPT2), ("llama", LLAMA | {"use_dora": True})]}
# Relative to the largest logit: where the scales are equal but for rounding, and where the code of one is a neighbour.
LOGIT_TOLERANCE, NEIGHBOUR_TOLERANCE = 1e-5, 2e-3
MERGED_TOLERANCE = 1e-3  # the adapters are as near as ADAPTER_TOLERANCE


def make_base(family):
    """Rows are whole blocks of 64 elements. On processors with AVX-512, bitsandbytes 0.50 reads others wrongly."""
    return make_model(family, hidden=64, inner=128)


def quantized(folder, **arguments):
    """Loads a folder with 4-bit weights: as it stores them, or quantized by bitsandbytes. Only a model that trains
    computes in float32 on all processors."""
    import transformers

    if arguments:
        arguments = {"quantization_config": transformers.BitsAndBytesConfig(**arguments)}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **arguments).train()


def nf4(folder):
    return quantized(folder, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                     bnb_4bit_compute_dtype=torch.float32)


def tensors_of(folder):
    from safetensors.torch import load_file

    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def logits(model):
    with torch.no_grad():
        return model(torch.arange(48).view(2, 24)).logits


def same_logits(a, b, tolerance):
    difference = ((logits(a) - logits(b)).abs().max() / logits(b).abs().max()).item()
    assert difference <= tolerance, difference
    return difference


def test_files(runs, family, _):
    theirs = nf4(runs.folder / "base")
    theirs.save_pretrained(runs.folder / "bnb")
    runs.program("export", runs.folder / "base", runs.folder / "ours", "--quantize", "nf4")
    mine, wanted = tensors_of(runs.folder / "ours"), tensors_of(runs.folder / "bnb")
    assert mine.keys() == wanted.keys(), set(mine) ^ set(wanted)
    codes, scales, near = 0, 0, 0
    for name, value in wanted.items():
        if name.endswith((".nested_absmax", "quant_state.bitsandbytes__nf4")):
            continue  # they depend on the mean of all scales, which differs in the last bits
        if name.endswith(".absmax"):
            # On a CPU, bitsandbytes looks codes of scales up in a table that is not exact next to midpoints.
            distance = (mine[name].int() - value.int()).abs()
            assert distance.max() <= 1, name
            scales, near = scales + value.numel(), near + distance.sum().item()
            continue
        assert torch.equal(mine[name], value), name
        codes += value.numel() if value.dtype == torch.uint8 else 0
    assert near <= 0.01 * scales, (near, scales)
    difference = same_logits(quantized(runs.folder / "ours"), theirs, NEIGHBOUR_TOLERANCE if near else LOGIT_TOLERANCE)
    print(f"{family}: {codes} bytes of codes are bitsandbytes', {near} of {scales} codes of scales are a neighbour; "
          f"transformers' logits differ by {difference:.1e}", flush=True)
    if family == "llama":  # transformers turns no matrices for int8
        runs.program("export", runs.folder / "base", runs.folder / "int8", "--quantize", "int8")
        eight = quantized(runs.folder / "base", load_in_8bit=True)
        eight.save_pretrained(runs.folder / "bnb8")
        mine, wanted = tensors_of(runs.folder / "int8"), tensors_of(runs.folder / "bnb8")
        for name, value in wanted.items():
            if value.dtype == torch.int8:
                assert (mine[name].int() - value.int()).abs().max() <= 1, name  # a product in bfloat16 or float32
            elif name.endswith("SCB"):
                assert torch.allclose(mine[name], value, rtol=1e-2), name
        print(f"{family}: int8 is bitsandbytes' to a step", flush=True)


def compress(weight):
    """Returns the codes and scales of compressed-tensors' FP8_DYNAMIC scheme."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationStrategy, QuantizationType
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = QuantizationArgs(num_bits=8, type=QuantizationType.FLOAT, symmetric=True, strategy=QuantizationStrategy.CHANNEL)
    scale, zero = calculate_qparams(weight.amin(1, keepdim=True), weight.amax(1, keepdim=True), scheme)
    return quantize(weight, scale, zero, scheme, dtype=torch.float8_e4m3fn), scale


def test_fp8(runs, family, _):
    import transformers

    for dtype in (torch.float32, torch.bfloat16):
        base, folder = make_base(family).to(dtype), runs.folder / str(dtype)
        base.save_pretrained(folder / "base")
        runs.program("export", folder / "base", folder / "ours", "--quantize", "fp8")
        ours, codes, found = tensors_of(folder / "ours"), 0, 0
        for name, weight in base.state_dict().items():
            if ".layers." not in name or weight.dim() != 2:
                assert torch.equal(ours[name], weight), name
                continue
            wanted, scale = compress(weight.float())
            assert torch.equal(ours[name + "_scale"], scale.float()), name
            assert torch.equal(ours[name].view(torch.uint8), wanted.view(torch.uint8)), name
            codes += wanted.numel()
        opened = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "ours", dtype=dtype, quantization_config=transformers.CompressedTensorsConfig(run_compressed=False))
        for name, module in opened.named_modules():
            if f"{name}.weight_scale" not in ours:
                continue
            wanted = (ours[f"{name}.weight"].float() * ours[f"{name}.weight_scale"]).to(dtype)
            rounding = 2**-7 if dtype == torch.bfloat16 else 1e-6
            assert torch.allclose(module.weight.detach(), wanted, rtol=rounding, atol=0), name
            found += wanted.numel()
        assert found == codes > 0, (found, codes)
        print(f"{family}, {dtype}: {codes} codes are compressed-tensors', and transformers opens them", flush=True)


def test_train(runs, family, arguments):
    import peft
    import transformers

    torch.manual_seed(7)
    theirs = nf4(runs.folder / "base")
    theirs.save_pretrained(runs.folder / "bnb")
    peft.get_peft_model(theirs, peft.LoraConfig(
        task_type="CAUSAL_LM", lora_dropout=0.0, init_lora_weights=False, **arguments)).save_pretrained(
            runs.folder / "start")
    runs.program("export", runs.folder / "base", runs.folder / "ours", "--quantize", "nf4")
    # PEFT's loop has the codes of the run: a code of a scale may be a neighbour of bitsandbytes' own.
    for number, (base, codes) in enumerate({"bnb": "bnb", "base": "ours"}.items()):
        adapted = peft.PeftModel.from_pretrained(
            quantized(runs.folder / codes), runs.folder / "start", is_trainable=True).train()
        wanted_losses = train_with_peft(adapted, runs.tokens, 1)
        adapted.save_pretrained(runs.folder / f"end{number}")
        wanted = adapter_of(runs.folder / f"end{number}")
        ours = runs.train(f"run{number}", f'{{adapter: "{runs.folder}/start", base: nf4}}', steps=STEPS, base=base)
        got = adapter_of(runs.folder / f"run{number}-peft")
        assert got.keys() == wanted.keys(), set(got) ^ set(wanted)
        loss = max(abs(a - b) / b for a, b in zip(ours, wanted_losses))
        weights = max(((got[name] - value).norm() / value.norm()).item() for name, value in wanted.items())
        print(f"{name_of(family, arguments)}, from {base}: loss {ours[0]:.6f} -> {ours[-1]:.6f}; largest relative differences: "
              f"losses {loss:.1e}, adapters {weights:.1e}", flush=True)
        assert ours[-1] < ours[0] - 0.1, "it learns nothing"
        assert loss <= LOSS_TOLERANCE and weights <= ADAPTER_TOLERANCE
    # The merged model computes what the codes and the adapter did, which PEFT's own merge into 4 bits does not.
    merging = runs.program("merge", runs.folder / "run1", runs.folder / "merged", "--json")
    outputs = json.loads(merging)["outputs"]
    assert (outputs["of"], outputs["tokens"], outputs["equal_share"]) == ("data", 4 * LENGTH, 1), outputs
    assert outputs["relative_error"] <= LOGIT_TOLERANCE, outputs
    merged = transformers.AutoModelForCausalLM.from_pretrained(runs.folder / "merged", dtype=torch.float32)
    difference = same_logits(merged, adapted, MERGED_TOLERANCE)
    print(f"{name_of(family, arguments)}: the merged model's logits differ by {difference:.1e} from those over nf4", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["files", "train", "fp8"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    need("transformers").utils.logging.disable_progress_bar()
    need("peft")
    need("compressed_tensors" if arguments.test == "fp8" else "bitsandbytes")
    torch.set_num_threads(1)
    lora_peft.STEPS, lora_peft.make_base = STEPS, make_base
    tokens = language(STEPS * ROWS * LENGTH + 1)
    for family, adapter in CASES[arguments.test]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder + "/cache"
            runs = Runs(Program(pathlib.Path(arguments.millrace).resolve()), pathlib.Path(folder), family, tokens)
            runs.tokens = tokens
            globals()[f"test_{arguments.test}"](runs, family, adapter)


if __name__ == "__main__":
    main()
