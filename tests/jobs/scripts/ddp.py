"""A training of PyTorch's DistributedDataParallel that knows nothing of Millrace: `torchrun ddp.py DATA CHECKPOINTS`."""
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from loss import lose
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY = 60, 10


def main(data, checkpoints):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    newest, begin = checkpoints / "newest.pt", 0
    if newest.exists():
        saved = torch.load(newest)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    numbers = torch.tensor([float(line) for line in (data / "numbers.txt").read_text().split()])
    for step in range(begin, STEPS):
        x = numbers[(step * ranks + rank) * 8 % 512:][:128].reshape(16, 8)
        loss = (model(x) - x.sin().sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.17g}")
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1},
                       checkpoints / "newest.partial")
            os.replace(checkpoints / "newest.partial", newest)
        lose(rank, step + 1)
    dist.barrier()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["MILLRACE_CHECKPOINTS"]))
    # Gloo's threads let go of tensors in their own time, and one that does so while the interpreter ends aborts the process:
    # https://github.com/pytorch/pytorch/pull/179291. DDP keeps the threads alive after destroy_process_group.
    sys.stdout.flush()
    os._exit(0)
