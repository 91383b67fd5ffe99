#!/usr/bin/env python3
"""Writes the tokenizer.json of GPT-2 for llama_cpp.py, from its vocabulary as tiktoken has it (r50k_base.tiktoken).

    gpt2_tokenizer.py r50k_base.tiktoken tokenizer.json

A line of the vocabulary is a token and its rank. The merge that makes a token is the one that is left when its bytes are
merged by lower ranks alone."""
import base64
import json
import pathlib
import sys

END = "<|endoftext|>"


def alphabet():
    """Returns the character that stands for each byte (GPT-2's bytes_to_unicode)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def parts(token, ranks):
    """Returns the two tokens that `token` is merged from."""
    left = [bytes([byte]) for byte in token]
    while len(left) > 2:
        pairs = [(ranks.get(a + b, len(ranks)), at) for at, (a, b) in enumerate(zip(left, left[1:]))]
        rank, at = min(pairs)
        if rank >= ranks[token]:
            sys.exit(f"the vocabulary has no merge that makes {token!r}")
        left[at:at + 2] = [left[at] + left[at + 1]]
    return left


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(pathlib.Path, sys.argv[1:])
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, source.read_text().splitlines())}
    letters = alphabet()
    def text(token):
        return "".join(letters[byte] for byte in token)
    by_rank = sorted(ranks, key=ranks.get)
    merges = [[text(part) for part in parts(token, ranks)] for token in by_rank if len(token) > 1]
    vocab = {text(token): rank for token, rank in ranks.items()} | {END: len(ranks)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    target.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(ranks), "content": END, **flags}],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges}}))


if __name__ == "__main__":
    main()
