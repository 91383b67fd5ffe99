"""Writes a Llama of random weights with a tokenizer of bytes and a chat template, as Hugging Face lays it out. Needs nothing but
Python. What the model says is nonsense, and the same nonsense every time."""
import json
import pathlib
import random
import struct

HIDDEN, LAYERS, HEADS, INTERMEDIATE, CONTEXT = 32, 2, 4, 64, 512
SPECIAL = ["<s>", "</s>"]
TEMPLATE = ("{% for message in messages %}{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}")


def byte_letters():
    """The characters that stand for the 256 bytes in GPT-2's vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def write_model(folder: pathlib.Path, seed=7):
    folder.mkdir(parents=True)
    letters = byte_letters()
    vocabulary = {token: at for at, token in enumerate([*SPECIAL, *(letters[byte] for byte in range(256))])}
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": len(vocabulary),
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for at, token in enumerate(SPECIAL)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": TEMPLATE}))
    shapes = {"model.embed_tokens.weight": [len(vocabulary), HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [len(vocabulary), HIDDEN]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": [HIDDEN], at + "post_attention_layernorm.weight": [HIDDEN]}
        shapes |= {f"{at}self_attn.{name}_proj.weight": [HIDDEN, HIDDEN] for name in "qkvo"}
        shapes |= {at + "mlp.gate_proj.weight": [INTERMEDIATE, HIDDEN], at + "mlp.up_proj.weight": [INTERMEDIATE, HIDDEN],
                   at + "mlp.down_proj.weight": [HIDDEN, INTERMEDIATE]}
    numbers, header, data = random.Random(seed), {"__metadata__": {"format": "pt"}}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [numbers.gauss(0, 0.3) for _ in range(count)]
        tensor = struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(tensor)]}
        data += tensor
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
