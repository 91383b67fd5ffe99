#!/usr/bin/env python3
"""Decodes with vLLM: the peer of decode_step, where vLLM is installed. Weights are random.

    vllm_decode.py --config gptj-6b --batch 64 [--prompt 128] [--tokens 128] [--layers N] [--rounds 3] [--fp8]

Prints one JSON object: decode_tokens_per_s (of the tokens after the first of each text), tokens_per_s (with the prompts).
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

CONFIGS = {
    "gptj-6b": dict(model_type="gptj", architectures=["GPTJForCausalLM"], n_embd=4096, n_layer=28, n_head=16, n_positions=2048,
                    rotary_dim=64, vocab_size=50400, activation_function="gelu_new", tie_word_embeddings=False),
    "llama2-7b": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=4096, intermediate_size=11008,
                      num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000,
                      max_position_embeddings=4096, rms_norm_eps=1e-5, hidden_act="silu"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="gptj-6b")
    parser.add_argument("--layers", type=int, default=0)
    for name, value in (("--batch", 1), ("--prompt", 128), ("--tokens", 128), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--fp8", action="store_true", help="weights and activations of 8 bits in linear layers")
    o = parser.parse_args()
    try:
        import vllm
    except ImportError:
        sys.exit("vllm is not installed")
    config = CONFIGS[o.config] | {"torch_dtype": "bfloat16"}
    if o.layers:
        config["n_layer" if o.config == "gptj-6b" else "num_hidden_layers"] = o.layers
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        model = vllm.LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                         quantization="fp8" if o.fp8 else None, max_model_len=o.prompt + o.tokens, max_num_seqs=o.batch, enable_prefix_caching=False)
        draw = random.Random(1)
        # A vocabulary's first ids may be special.
        prompts = [{"prompt_token_ids": [draw.randrange(1000, config["vocab_size"]) for _ in range(o.prompt)]}
                   for _ in range(o.batch)]

        def seconds(tokens):
            settings = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            begin = time.perf_counter()
            made = model.generate(prompts, settings, use_tqdm=False)
            took = time.perf_counter() - begin
            assert all(len(text.outputs[0].token_ids) == tokens for text in made)
            return took

        seconds(o.tokens)  # compiles and records
        whole = statistics.median(seconds(o.tokens) for _ in range(o.rounds))
        first = statistics.median(seconds(1) for _ in range(o.rounds))
    print(json.dumps(dict(program="vllm", config=o.config, batch=o.batch, tokens_per_s=o.batch * o.tokens / whole,
                          decode_tokens_per_s=o.batch * (o.tokens - 1) / (whole - first))))


main()
