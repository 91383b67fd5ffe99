#!/usr/bin/env python3
"""Tests benchmarks/gpu/run and profile_steps.py with scripts in the place of the programs, on any machine.

    gpu_stages_test.py SOURCE_FOLDER
"""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(sys.argv.pop(1)).resolve() / "benchmarks" / "gpu"
sys.dont_write_bytecode = True
sys.path.insert(0, str(FOLDER))
import profile_steps  # noqa: E402
import runner  # noqa: E402

TRACE = {"names": ["nvjet_hsh_128x128", "flash_fwd_kernel", "AdamwKernel", "AddRmsNorm", "copy host to device"], "events": []}
# Six steps of 210 µs, and 10 µs between each two kernels. The copy of the second stream runs beside the product.
for step in range(6):
    at = step * 250_000
    for name, length in ((1, 50_000), (0, 100_000), (3, 30_000), (2, 30_000)):
        TRACE["events"].append([name, 7, at, at + length, 0])
        if name == 0:
            TRACE["events"].append([4, 8, at + 10_000, at + 20_000, 1 << 20])
        at += length + 10_000

# Prints ours for `train_step …`, and a peer's for `python torch_step.py …`.
PROGRAM = """#!{python}
import json, os, pathlib, sys, time
words = sys.argv[1:]
if "-c" in words:
    print("1.2.3")
    sys.exit()
calls = pathlib.Path({calls!r})
calls.write_text((calls.read_text() if calls.exists() else "") + " ".join(sys.argv) + "\\n")
peer = any(word.endswith(".py") for word in words)
if peer and "pure" in words:
    print("step 0: 1.250 s, loss 1", file=sys.stderr, flush=True)
    time.sleep(60)
if peer and "master" not in words and "block" not in words:
    sys.exit("the peer | broke")
if not peer and "full" not in words:
    sys.exit("CUDA out of memory. Tried to allocate 1 GiB")
if "MILLRACE_TRACE" in os.environ:
    pathlib.Path(os.environ["MILLRACE_TRACE"]).write_text({trace!r})
print(json.dumps(dict(tokens_per_s=600.0 if not peer else 400.0, step_s=1, step_s_min=0.9, step_s_max=1.1, mfu=0.5)))
"""


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        text = PROGRAM.format(python=sys.executable, calls=str(self.folder / "calls"), trace=json.dumps(TRACE))
        for name in ("bin/train_step", "python"):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def run_stage(self, *words):
        done = subprocess.run([sys.executable, FOLDER / "run", *words, "--programs", self.folder / "bin", "--results",
                               self.folder / "results", "--python", self.folder / "python"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.splitlines()

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_takes_less_memory_until_it_suffices(self):
        output = self.run_stage("llama7b", "--only", "^Millrace$")
        self.assertEqual(len(self.calls()), 3)
        self.assertIn("| Llama-2-7B, AdamW, 4,096 tokens | Millrace | 600, 50.0% MFU (--recompute full) | 1000.0 ms (900.0 to 1100.0) |  "
                      "| ≥ 58 % MFU, ≥ 1.1× torch.compile |", output)

    def test_goes_on_after_failures(self):
        output = self.run_stage("llama7b", "--only", "^Millrace$|torch.compile, master|eager")
        self.assertIn("|  | torch.compile, master | 400, 50.0% MFU | 1000.0 ms (900.0 to 1100.0) | 1.50× |  |", output)
        self.assertTrue(any("torch eager, master | exit status 1" in line for line in output), output)

    def test_skips_what_no_longer_fits(self):
        output = self.run_stage("llama7b", "--budget", "5")
        self.assertTrue(any("torch.compile, master | skipped: the time of the stage was over" in line for line in output), output)
        self.assertEqual(self.calls(), [])

    def test_stops_programs_at_their_limit(self):
        words = [str(self.folder / "python"), "torch_step.py", "pure"]
        status, _, err = runner.run_process(words, 10, dict(os.environ), io.StringIO())  # Python may start slowly
        self.assertIsNone(status)
        self.assertEqual(runner.steps_seen(err), "; last of 1 steps: 1.250 s")

    def test_says_why_a_program_failed(self):
        output = self.run_stage("llama7b", "--only", "eager")
        self.assertTrue(any("exit status 1: the peer / broke" in line for line in output), output)

    def test_skips_what_succeeded(self):
        self.run_stage("llama7b", "--only", "^Millrace$")
        before = len(self.calls())
        self.assertIn("llama7b, Millrace: measured before", self.run_stage("llama7b", "--only", "^Millrace$"))
        self.assertEqual(len(self.calls()), before)
        self.run_stage("llama7b", "--only", "^Millrace$", "--again")
        self.assertGreater(len(self.calls()), before)

    def test_marks_shorter_models(self):
        output = self.run_stage("llama7b", "--only", "^Millrace$", "--layers", "8")
        self.assertTrue(any("(--recompute full, 8 layers)" in line for line in output), output)

    def test_keeps_profiles(self):
        output = self.run_stage("llama7b", "--only", "Millrace, profile")
        self.assertIn("0.25 ms a step, 4 steps", output)
        self.assertFalse(any(line.startswith("| Llama") for line in output), "the table shows the speed of a run that was traced")

    def test_lists_results_later(self):
        self.run_stage("gpt2", "--only", "torch.compile, master")
        table = self.run_stage("table")
        self.assertTrue(any(line.startswith("| GPT-2 124M") for line in table), table)


class Profile(unittest.TestCase):
    def test_shares_of_a_step(self):
        found = profile_steps.summarize(TRACE, 4, 3)
        self.assertEqual(found["steps"], 4)
        self.assertAlmostEqual(found["step_ms"], 0.25)
        shares = {row["class"]: row["share"] for row in found["classes"]}
        expected = {"products": 0.4, "attention": 0.2, "memory-bound": 0.12, "optimizer": 0.12, "copies": 0.04, "idle": 0.16}
        self.assertEqual({key: round(value, 6) for key, value in shares.items()}, expected)
        self.assertEqual([kernel["name"] for kernel in found["kernels"]], TRACE["names"][:2] + ["AddRmsNorm"])

    def test_classes(self):
        for name, label in {
                "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16": "attention",
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16>": "products",
                "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>": "optimizer",
                "triton_per_fused_add_rms_norm_3": "memory-bound", "triton_tem_fused_mm_5": "products"}.items():
            self.assertEqual(profile_steps.class_of(name), label, name)


unittest.main()
