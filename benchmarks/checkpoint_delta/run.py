"""What deltas and lossless compression would save of checkpoints: a small Llama is trained on the texts of Python's library, and of
two checkpoints in a row is measured how many chunks are the same in both, and what zstd makes of the bytes: as they
are, with the bytes of each rank of significance together ("shuffled"), and of the difference (XOR) to the checkpoint before.
One thread, in pieces of 1 MiB.

    python3 run.py train BIN_FOLDER FOLDER && python3 run.py measure FOLDER        (needs numpy and libzstd)
"""
import ctypes
import ctypes.util
import json
import pathlib
import re
import subprocess
import sys
import sysconfig
import time

import numpy as np

STEPS, EVERY, CHUNK = 120, 5, 1 << 20
JOB = """
name: delta
model: {family: llama, config: {hidden_size: 256, num_layers: 4, num_heads: 4, num_kv_heads: 4, intermediate_size: 688, vocab_size: 2048}}
data:
  sources: [{url: "FOLDER/corpus/*.jsonl"}]
  template: "{text}"
  tokenizer: FOLDER/tokenizer.model
  sequence_length: 64
train:
  steps: STEPS
  global_batch: 4
  micro_batch: 4
  optimizer: {lr: 1.0e-3}
  schedule: {name: cosine, warmup_steps: 10, min_lr: 1.0e-4}
checkpoint: {url: "FOLDER/run", every_steps: EVERY, keep_last: 100}
run: {launcher: local, processes_per_node: 1}
"""


def train(programs: str, folder: pathlib.Path) -> None:
    millrace = str(pathlib.Path(programs) / "millrace")
    (folder / "corpus").mkdir(parents=True)
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    with (folder / "corpus" / "library.jsonl").open("w") as out:
        for source in sorted(library.glob("*.py")):
            for text in re.split(r"\n\n\n+", source.read_text(errors="ignore")):
                out.write(json.dumps({"text": text}) + "\n")
    subprocess.run([millrace, "tokenizer", "train", "--input", f"{folder}/corpus/*.jsonl", "--field", "text", "--vocab-size", "2048",
                    "--output", f"{folder}/tokenizer.model"], check=True)
    job = folder / "job.yaml"
    job.write_text(JOB.replace("FOLDER", str(folder)).replace("STEPS", str(STEPS)).replace("EVERY", str(EVERY)))
    subprocess.run([millrace, "job", "run", str(job)], check=True)


def tensors(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """By name, the elements as 32-bit words."""
    found = {}
    for file in (folder / "run" / f"step-{step:08}").rglob("*.safetensors"):
        data = np.memmap(file, np.uint8, "r")
        size = int(data[:8].view(np.uint64)[0])
        for name, entry in json.loads(data[8:8 + size].tobytes()).items():
            if name != "__metadata__" and entry["dtype"] == "F32":
                begin, end = entry["data_offsets"]
                found[name] = np.array(data[8 + size + begin:8 + size + end]).view(np.uint32)
    return found


class Zstd:
    def __init__(self) -> None:
        self.library = ctypes.CDLL(ctypes.util.find_library("zstd"))
        self.library.ZSTD_compress.restype = self.library.ZSTD_compressBound.restype = ctypes.c_size_t
        self.library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
        self.library.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.out = ctypes.create_string_buffer(self.library.ZSTD_compressBound(CHUNK))

    def size(self, data: np.ndarray) -> int:
        return self.library.ZSTD_compress(self.out, len(self.out), data.ctypes.data, data.nbytes, 1)


def shuffled(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T)


def squeeze(zstd: Zstd, words: np.ndarray, before: np.ndarray, how: str) -> tuple[float, float]:
    """The ratio, and MB/s of what goes in."""
    per_chunk, out, started = CHUNK // words.itemsize, 0, time.perf_counter()
    for at in range(0, len(words), per_chunk):
        piece = words[at:at + per_chunk]
        if "xor" in how:
            piece = piece ^ before[at:at + per_chunk]
        out += zstd.size(shuffled(piece) if "shuffled" in how else piece)
    return words.nbytes / out, words.nbytes / 1e6 / (time.perf_counter() - started)


def measure(folder: pathlib.Path) -> None:
    zstd = Zstd()
    for first, second in ((20, 25), (STEPS - EVERY, STEPS)):
        a, b = tensors(folder, first), tensors(folder, second)
        groups: dict[str, list[str]] = {}
        for name in sorted(b):
            kind = "weights" if name.startswith("model/") else "Adam " + re.split(r"[/.]", name)[1]
            groups.setdefault(kind, []).append(name)
        for kind, names in groups.items():
            before, words = (np.concatenate([of[name].ravel() for name in names]) for of in (a, b))
            cases = [(kind, before, words)]
            if kind == "weights":
                cases.append(("weights as bf16", *((x >> 16).astype(np.uint16) for x in (before, words))))
            for label, old, new in cases:
                line = {"steps": [first, second], "what": label, "MB": round(new.nbytes / 1e6, 1)}
                for grain in (CHUNK, 4096):
                    pairs = [(old.view(np.uint8)[i:i + grain], new.view(np.uint8)[i:i + grain]) for i in range(0, new.nbytes, grain)]
                    line[f"same_of_{grain}"] = round(sum(bool((x == y).all()) for x, y in pairs) / len(pairs), 3)
                for how in ("plain", "shuffled", "xor", "xor shuffled"):
                    ratio, speed = squeeze(zstd, new, old, how)
                    line[how] = {"ratio": round(ratio, 2), "MB_per_s": round(speed)}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        measure(pathlib.Path(sys.argv[2]))
