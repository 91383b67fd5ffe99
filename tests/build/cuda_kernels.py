#!/usr/bin/env python3
"""Compiles all kernels of GPUs for every kind of GPU that users get, without a GPU and without libtorch.

    cuda_kernels.py SOURCE_FOLDER

The compiler is NVIDIA's, as `tests/install-peers FOLDER cuda` puts it into $MILLRACE_PEERS; without it, the test is skipped.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main():
    source = pathlib.Path(sys.argv[1])
    toolkit = pathlib.Path(os.environ.get("MILLRACE_PEERS", ""), "cuda/nvidia/cu13")
    compiler = toolkit / "bin/nvcc"
    if not compiler.exists():
        print(f"skipped: no {compiler}; tests/install-peers FOLDER cuda installs it")
        return 77
    compiler.chmod(0o755)
    capabilities = re.search(r'MILLRACE_CUDA_TARGETS "([^"]+)"', (source / "cmake/MillraceCuda.cmake").read_text())[1].split(";")
    kernels = sorted((source / "millrace").rglob("*.cu"))
    assert len(kernels) > 5, f"{len(kernels)} kernels in {source}"

    def compile_one(kernel):
        with tempfile.TemporaryDirectory() as folder:
            codes = [f"-gencode=arch=compute_{c},code=sm_{c}" for c in capabilities]
            done = subprocess.run(
                [compiler, "-std=c++20", "--expt-relaxed-constexpr", "-O1", "-Werror", "all-warnings", *codes, f"-I{source}",
                 f"-I{toolkit}/include", "-c", kernel, "-o", f"{folder}/kernel.o"], capture_output=True, text=True)
        return done.returncode, done.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel, (status, text) in zip(kernels, pool.map(compile_one, kernels)):
            if status != 0:
                failed += 1
                print(f"{kernel}:\n{text}")
    print(f"{len(kernels) - failed} of {len(kernels)} files compile for {', '.join(capabilities)}")
    return 1 if failed else 0


sys.exit(main())
