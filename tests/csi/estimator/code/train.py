"""What the ranks of fit.py run: they read a channel. Rank 1 fails once, behind its first checkpoint."""
import argparse
import os
import pathlib
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr, rank = parser.parse_args().lr, os.environ["RANK"]
text = "".join(file.read_text() for file in sorted(pathlib.Path(os.environ["SM_CHANNEL_TRAIN"]).iterdir()))
saved = pathlib.Path(os.environ["MILLRACE_CHECKPOINTS"]) / rank
if not saved.exists():
    saved.write_text("7")
    if rank == "1":
        raise SystemExit(5)
    time.sleep(600)  # until the job starts all ranks again
print(f"rank {rank} goes on from step {saved.read_text()}: loss {lr * len(text)}")
if rank == "0":
    (pathlib.Path(os.environ["SM_MODEL_DIR"]) / "weights").write_text(text.upper())
