"""Writes a small Llama with random weights, in the files of meta-llama/Llama-2-7b-hf.

    python small_llama.py TOKENIZER.model FOLDER [--hidden-size 256] [--layers 4]          needs torch and transformers

The folder has config.json, model.safetensors, tokenizer.model, and the tokenizer.json that transformers makes of it. It
stands in for Llama-2-7B, so that the example needs neither a download nor a GPU.
"""
import argparse
import pathlib
import shutil
import sys

import torch
import transformers

HEAD_SIZE = 32
# Rows of whole blocks of 64 elements, as Llama-2-7B has. On CPUs with AVX-512, bitsandbytes reads other matrices wrongly.
HIDDEN_SIZE_UNIT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.hidden_size % HIDDEN_SIZE_UNIT != 0:
        sys.exit(f"--hidden-size {arguments.hidden_size} is not a multiple of {HIDDEN_SIZE_UNIT}")

    tokenizer = transformers.LlamaTokenizer.from_pretrained(arguments.tokenizer.parent, add_bos_token=True)
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=arguments.hidden_size, intermediate_size=11 * arguments.hidden_size // 4,
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.hidden_size // HEAD_SIZE,
        max_position_embeddings=512, rms_norm_eps=1e-5))
    model.save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)
    shutil.copy(arguments.tokenizer, arguments.folder / "tokenizer.model")
    print(f"{arguments.folder}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
