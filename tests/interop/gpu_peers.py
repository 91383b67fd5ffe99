#!/usr/bin/env python3
"""The models that benchmarks/gpu compares Millrace with compute as transformers', on the CPU: losses, gradients, decoded ids.

    gpu_peers.py BENCHMARKS_GPU_FOLDER      # MILLRACE_PEERS/venv has torch and transformers

Exit status: 77 if they are missing.
"""
import os
import pathlib
import subprocess
import sys

python = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"), "venv/bin/python")
found = python.exists() and subprocess.run([python, "-c", "import torch, transformers"], stderr=subprocess.DEVNULL).returncode == 0
if not found:
    print(f"skipped: no torch and transformers in {python}; tests/install-peers installs them")
    sys.exit(77)
check = pathlib.Path(sys.argv[1]).resolve() / "check_models.py"
sys.exit(subprocess.run([python, "-B", check], env=dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")).returncode)
