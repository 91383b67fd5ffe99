"""Writes a LoRA adapter as PEFT saves one, of a few zeros, without torch: python3 make_adapter.py FOLDER"""
import json
import pathlib
import struct
import sys


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
              "base_model_name_or_path": "Llama-2-7b-hf"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    header, offset = {}, 0
    for name, shape in (("lora_A", [2, 32]), ("lora_B", [32, 2])):
        header[f"base_model.model.model.layers.0.self_attn.q_proj.{name}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 256]}
        offset += 256
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
