"""Writes folders of Hugging Face with small models of random weights: the architectures of published models, with tokenizers.

    python3 small_models.py FOLDER OWNER/NAME...

FOLDER/OWNER/NAME gets config.json, model.safetensors and the tokenizer's files. MODELS lists the names.
"""
import json
import math
import pathlib
import random
import struct
import sys

#: A published model's keys in config.json; the sizes are small ones.
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
         "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192},
         "tie_word_embeddings": True, "head_dim": 8, "attention_bias": False, "mlp_bias": False}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1000000,
         "rope_scaling": None, "tie_word_embeddings": True, "head_dim": 16, "attention_bias": False,
         "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "type_vocab_size": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
MODELS = {"meta-llama/Llama-3.2-1B": LLAMA, "Qwen/Qwen3-0.6B": QWEN3, "Qwen/Qwen3-0.6B-Base": QWEN3,
          "Qwen/Qwen3-4B-Base": QWEN3, "google-bert/bert-base-uncased": BERT}
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 32, 2, 4, 2, 48
SPECIAL = {"llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
           "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz,.'",
              *("##" + letter for letter in "abcdefghijklmnopqrstuvwxyz")]


def byte_signs():
    """The characters that stand for bytes in the files of byte-level BPE."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in plain)
    return [chr(byte) for byte in plain] + [chr(256 + at) for at, _ in enumerate(others)]


def write_tokenizer(folder, family):
    """Byte-level BPE without merges: a token for each byte. Returns the size of the vocabulary."""
    signs, special = byte_signs(), SPECIAL[family]
    added = [{"id": len(signs) + at, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for at, token in enumerate(special)]
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {sign: at for at, sign in enumerate(signs)}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    ends = {"llama": ("<|begin_of_text|>", "<|end_of_text|>"), "qwen3": (None, "<|endoftext|>")}[family]
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": ends[0], "eos_token": ends[1]}), encoding="utf-8")
    return len(signs) + len(special)


def decoder_shapes(config):
    head, hidden = config["head_dim"], config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        yield from ((block + f"self_attn.{name}_proj.weight", (rows * head, hidden)) for name, rows in (
            ("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])))
        yield block + "self_attn.o_proj.weight", (hidden, config["num_attention_heads"] * head)
        if config["model_type"] == "qwen3":
            yield from ((block + f"self_attn.{name}_norm.weight", (head,)) for name in "qk")
        yield from ((block + f"mlp.{name}_proj.weight", (config["intermediate_size"], hidden)) for name in ("gate", "up"))
        yield block + "mlp.down_proj.weight", (hidden, config["intermediate_size"])
        yield from ((block + f"{name}_layernorm.weight", (hidden,)) for name in ("input", "post_attention"))
    yield "model.norm.weight", (hidden,)


def bert_shapes(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]

    def linear(name, rows, columns):
        return [(name + ".weight", (rows, columns)), (name + ".bias", (rows,))]

    def norm(name):
        return [(name + ".weight", (hidden,)), (name + ".bias", (hidden,))]

    for name, rows in (("word", config["vocab_size"]), ("position", config["max_position_embeddings"]), ("token_type", 2)):
        yield f"bert.embeddings.{name}_embeddings.weight", (rows, hidden)
    yield from norm("bert.embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        block = f"bert.encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            yield from linear(block + "attention.self." + name, hidden, hidden)
        yield from linear(block + "attention.output.dense", hidden, hidden) + norm(block + "attention.output.LayerNorm")
        yield from linear(block + "intermediate.dense", inner, hidden) + linear(block + "output.dense", hidden, inner)
        yield from norm(block + "output.LayerNorm")
    yield "cls.predictions.bias", (config["vocab_size"],)
    yield from linear("cls.predictions.transform.dense", hidden, hidden) + norm("cls.predictions.transform.LayerNorm")


def header_of(shapes, kind, size):
    """The first bytes of a file of safetensors, and the length of all tensors."""
    header, offset = {}, 0
    for name, shape in shapes:
        end = offset + size * math.prod(shape)
        header[name], offset = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}, end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text, offset


def write_weights(path, shapes):
    draw, shapes = random.Random(path.parent.name), list(shapes)
    with path.open("wb") as file:
        file.write(header_of(shapes, "F32", 4)[0])
        for name, shape in shapes:
            is_norm = "norm" in name.lower() and name.endswith("weight")
            count = math.prod(shape)
            file.write(struct.pack(f"<{count}f", *(1.0 if is_norm else draw.gauss(0, 0.02) for _ in range(count))))


def write_hole(place, config):
    """A decoder of any size in bfloat16, whose weights are a hole in a file: for plans, which read no weights."""
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    head, size = header_of(decoder_shapes(config), "BF16", 2)
    with (place / "model.safetensors").open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)


def write(folder, name):
    """Writes the model OWNER/NAME below a folder."""
    place = pathlib.Path(folder) / name
    place.mkdir(parents=True, exist_ok=True)
    config = {**MODELS[name], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "intermediate_size": INNER}
    if config["model_type"] == "bert":
        (place / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n", encoding="utf-8")
        config |= {"vocab_size": len(WORDPIECES), "max_position_embeddings": 512}
        shapes = bert_shapes(config)
    else:
        config |= {"vocab_size": write_tokenizer(place, config["model_type"]), "num_key_value_heads": KV_HEADS,
                   "max_position_embeddings": 32768, "hidden_act": "silu"}
        shapes = decoder_shapes(config)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_weights(place / "model.safetensors", shapes)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for each in sys.argv[2:]:
        write(sys.argv[1], each)
