"""The stages of `run`: which programs each runs, in the order of their importance, and what the tables compare."""
import dataclasses
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]


@dataclasses.dataclass
class Part:
    work: str  # the row of the table
    program: str  # "Millrace" or the peer's name, in the table
    command: list  # words; {programs}, {python} and {source} are filled in
    limit: int  # seconds after which it is stopped
    kind: str = "speed"  # speed: prints one JSON object; test: its exit status counts; profile: speed, traced; text: prints lines
    fallbacks: tuple = ()  # words that are added in turn, as long as the GPU's memory does not suffice
    needs: str = ""  # a file without which the part is skipped
    starts_programs: bool = False  # a script that starts ours
    environment: dict = dataclasses.field(default_factory=dict)  # variables, beside those of all programs

    @property
    def ours(self):
        return self.program.startswith("Millrace")


@dataclasses.dataclass
class Work:
    title: str
    metric: str
    goal: str


# What a row of the table shows. The goals are of the project, for one H200.
WORKS = {
    "llama7b": Work("Llama-2-7B, AdamW, 4,096 tokens", "tokens_per_s", "≥ 58 % MFU, ≥ 1.1× torch.compile"),
    "gpt2": Work("GPT-2 124M, AdamW, 1,024 tokens", "tokens_per_s", "≥ 550,000 tokens/s"),
    "bert": Work("BERT-large, AdamW, 128 tokens", "tokens_per_s", "≥ 55 % MFU"),
    "lora": Work("Llama-2-7B, LoRA r 16, 2,048 tokens", "tokens_per_s", "≥ 1.15× peft"),
    "qlora": Work("Llama-2-7B, QLoRA NF4, 2,048 tokens", "tokens_per_s", "≥ 0.9× Millrace's LoRA, ≤ 9 GB"),
    "sst2": Work("GPT-2 124M, 512 tokens, compile on", "tokens_per_s", "≥ 1.8× compile off"),
    "decode-1": Work("GPT-J-6B, decoding, 1 stream", "decode_tokens_per_s", "≥ 85 % of the bandwidth's roofline"),
    "decode-1-codes": Work("The same, weights of 8 or 4 bits, 1 stream", "decode_tokens_per_s", "faster than bf16"),
    "decode-64-codes": Work("The same, weights of 8 or 4 bits, 64 streams", "tokens_per_s", "≥ 1.0× vLLM with FP8"),
    "decode-64-llama": Work("Llama-2-7B, 128 tokens in and out, 64 streams", "tokens_per_s", "≥ 1.0× vLLM"),
    "decode-64": Work("GPT-J-6B, 128 tokens in and out, 64 streams", "tokens_per_s", "≥ 10,907 tokens/s, or ≥ 1.0× vLLM"),
}


def ours(*words):
    return ["{programs}/train_step", "--device", "cuda", "--progress", *words]


def torch_step(*words):
    return ["{python}", str(HERE / "torch_step.py"), *words]


def shorter(words, layers):
    return [*words, "--layers", str(layers)] if layers else list(words)


def check(o):
    tests = sorted(path.name for path in o.programs.glob("*_cuda_test"))
    return [
        Part("ceilings", "torch", ["{python}", str(HERE / "ceilings.py")], 60),
        *(Part("tests", test, ["{programs}/" + test, "--gtest_brief=1"], 240, "test") for test in tests),
        Part("tests", "run_jobs.py", ["{python}", "{source}/tests/gpu/run_jobs.py", "{programs}"], 240, "test",
             needs=str(SOURCE / "tests/gpu/run_jobs.py"), starts_programs=True),
    ]


def sanitizers(o):
    """NVIDIA's checks of memory, races and values that were never set, over the tests of kernels. Without PyTorch's cache of memory, which
    would hide what lies beside a tensor."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    parts = []
    # Each stops the kernels for long; the tests of products and of single ops come first.
    for check in ("memcheck", "racecheck", "initcheck"):
        for test, chosen in (("fp8_cuda_test", "*"), ("engine_cuda_test", "*BFloat16*-*ManyElements*")):
            command = [tool, "--tool", check, "--error-exitcode", "9", "{programs}/" + test, "--gtest_brief=1", f"--gtest_filter={chosen}"]
            parts.append(Part("sanitizers", f"{check}, {test}", command, 170, "test", needs=str(o.programs / test),
                              environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))
    return parts


def curve(o):
    """1,000 steps of GPT-2 124M on the same blocks with the same first weights as transformers; then what steps wait for, streaming
    from a server of buckets."""
    command = ["{python}", "{source}/benchmarks/training_compiler/compare.py", "--millrace", "{programs}/millrace", "--python", "{python}",
               "--device", "cuda", "--precision", "bf16", "--corpus", "repository", "--steps", "1000",
               "--batch", "1", "--lr", "1e-4", "--ways"]
    pause = ["{python}", str(HERE / "checkpoint_pause.py"), "--millrace-train", "{programs}/millrace-train", "--tokenizer",
             "{source}/millrace/train/testdata/tokenizer.model", "--folder", "/tmp", "--layers", str(o.layers or 8)]
    return [
        Part("curve", "losses of 1,000 steps, eager", [*command, "on,eager"], 400, "text", starts_programs=True),
        Part("curve", "pause for checkpoints, layers of Llama-2-7B", pause, 200, "text", starts_programs=True),
        Part("curve", "losses of 1,000 steps, torch.compile", [*command, "on,eager,compiled"], 500, "text", starts_programs=True),
    ]


def llama7b(o):
    # Four micro-batches a step: the optimizer is a few percent of the step, as in real runs.
    words = shorter("--config llama2-7b --length 4096 --batch 1 --micro-batches 4".split(), o.layers)
    steps = ["--steps", str(o.steps)]
    less = (("--recompute", "4"), ("--recompute", "32"))
    block = ["--compile", "default", "--scope", "block"]
    wide = shorter("--config llama2-7b --length 4096 --batch 2 --micro-batches 2".split(), o.layers)
    return [
        Part("llama7b", "Millrace", ours(*words, *steps, "--precision", "bf16"), 160,
             fallbacks=(("--recompute", "selective"), ("--recompute", "full"))),
        Part("llama7b", "torch.compile, master", torch_step(*words, *steps, *block), 200, fallbacks=less),
        Part("llama7b", "Millrace, fp8", ours(*words, *steps, "--precision", "fp8"), 160,
             fallbacks=(("--recompute", "selective"), ("--recompute", "full"))),
        Part("llama7b", "Millrace, fp8 with delayed scaling",
             ours(*words, *steps, "--precision", "fp8", "--fp8-scaling", "delayed"), 160,
             fallbacks=(("--recompute", "selective"), ("--recompute", "full"))),
        Part("llama7b", "Millrace, fp8 with block scaling",
             ours(*words, *steps, "--precision", "fp8", "--fp8-scaling", "block"), 160,
             fallbacks=(("--recompute", "selective"), ("--recompute", "full"))),
        Part("llama7b", "torch.compile with torchao's fp8, master",
             torch_step(*words, *steps, *block, "--precision", "fp8"), 250, fallbacks=less),
        Part("llama7b", "torch.compile, pure", torch_step(*wide, *steps, *block, "--numerics", "pure"), 200, fallbacks=less),
        Part("llama7b", "Millrace, profile", ours(*words, "--steps", "4", "--precision", "bf16"), 90, "profile",
             fallbacks=(("--recompute", "selective"), ("--recompute", "full"))),
        Part("llama7b", "torch.compile, profile", torch_step(*words, "--steps", "4", *block), 120, "profile", fallbacks=less),
        Part("llama7b", "torch.compile max-autotune, master",
             torch_step(*words, *steps, "--compile", "max-autotune-no-cudagraphs", "--scope", "block"), 300, fallbacks=less),
        Part("llama7b", "torch eager, master", torch_step(*words, *steps), 150, fallbacks=less),
        Part("llama7b", "Millrace, state on the host",
             ours(*words, *steps, "--precision", "bf16", "--offload-state", "--recompute", "full", "--offload-inputs"), 200),
    ]


def gpt2(o):
    # 2^19 tokens a step, as in GPT-3's recipe for this size and in llm.c.
    words = "--config gpt2-124m --length 1024 --batch 64 --micro-batches 8".split()
    steps = ["--steps", str(o.steps)]
    compiled = ["--compile", "default"]
    return [
        Part("gpt2", "Millrace", ours(*words, *steps, "--precision", "bf16"), 120),
        Part("gpt2", "torch.compile, master", torch_step(*words, *steps, *compiled), 150),
        Part("gpt2", "torch.compile, pure", torch_step(*words, *steps, *compiled, "--numerics", "pure"), 150),
        Part("gpt2", "Millrace, profile", ours(*words, "--steps", "4", "--precision", "bf16"), 60, "profile"),
        Part("gpt2", "torch.compile, profile", torch_step(*words, "--steps", "4", *compiled), 90, "profile"),
        Part("gpt2", "torch.compile max-autotune, master",
             torch_step(*words, *steps, "--compile", "max-autotune-no-cudagraphs"), 240),
    ]


def bert(o):
    words = "--config bert-large --length 128 --batch 256 --micro-batches 4".split()
    steps = ["--steps", str(o.steps)]
    compiled = ["--compile", "default"]
    return [
        Part("bert", "Millrace", ours(*words, *steps, "--precision", "bf16"), 120),
        Part("bert", "torch.compile, master", torch_step(*words, *steps, *compiled), 200),
        Part("bert", "torch.compile, pure", torch_step(*words, *steps, *compiled, "--numerics", "pure"), 200),
        Part("bert", "Millrace, profile", ours(*words, "--steps", "4", "--precision", "bf16"), 60, "profile"),
    ]


def sst2(o):
    # The article's sequences have 512 tokens.
    words = "--config gpt2-124m --length 512 --batch 32 --micro-batches 1".split()
    steps = ["--steps", str(max(o.steps, 40))]
    return [
        Part("sst2", "Millrace", ours(*words, *steps, "--precision", "bf16", "--compile", "on"), 60),
        Part("sst2", "Millrace, compile off", ours(*words, *steps, "--precision", "bf16", "--compile", "off"), 60),
        Part("sst2", "torch eager, master", torch_step(*words, *steps), 60),
        Part("sst2", "torch.compile, master", torch_step(*words, *steps, "--compile", "default"), 150),
        Part("sst2", "torch.compile reduce-overhead, master", torch_step(*words, *steps, "--compile", "reduce-overhead"), 150),
    ]


def lora(o):
    words = shorter("--config llama2-7b --length 2048 --batch 4 --micro-batches 1 --lora 16".split(), o.layers)
    steps = ["--steps", str(o.steps)]
    block = ["--compile", "default", "--scope", "block"]
    peft = ["{python}", str(HERE / "torch_lora.py"), *words, *steps]
    less = (("--recompute", "32"),)
    own = (("--recompute", "full"),)
    return [
        Part("lora", "Millrace", ours(*words, *steps, "--precision", "bf16"), 90, fallbacks=own),
        Part("lora", "peft, torch.compile, pure", [*peft, *block, "--numerics", "pure"], 150, fallbacks=less),
        Part("qlora", "Millrace", ours(*words, *steps, "--precision", "bf16", "--nf4"), 120, fallbacks=own),
        Part("lora", "Millrace, fp8", ours(*words, *steps, "--precision", "fp8"), 90, fallbacks=own),
        Part("qlora", "Millrace, one sequence, full recomputation",
             ours(*shorter("--config llama2-7b --length 2048 --batch 1 --micro-batches 1 --lora 16".split(), o.layers), *steps,
                  "--precision", "bf16", "--nf4", "--recompute", "full"), 90),
        Part("qlora", "peft with bitsandbytes, eager, pure", [*peft, "--nf4", "--numerics", "pure"], 150, fallbacks=less),
        Part("lora", "peft, torch.compile, master", [*peft, *block], 150, fallbacks=less),
        Part("lora", "peft with Liger, pure", [*peft, "--liger", "--numerics", "pure"], 120, fallbacks=less),
        Part("lora", "peft, eager, pure", [*peft, "--numerics", "pure"], 120, fallbacks=less),
        Part("qlora", "peft with bitsandbytes, torch.compile, pure", [*peft, "--nf4", *block, "--numerics", "pure"], 150,
             fallbacks=less),
        Part("lora", "Millrace, profile", ours(*words, "--steps", "4", "--precision", "bf16"), 60, "profile", fallbacks=own),
    ]


def decode(o):
    shape = shorter(["--config", "gptj-6b"], o.layers)
    words = ["{python}", str(HERE / "torch_decode.py"), *shape]
    own = ["{programs}/decode_step", "--device", "cuda", *shape]
    vllm = ["{python}", str(HERE / "vllm_decode.py"), *shape]
    of_llama = shorter(["--config", "llama2-7b"], o.layers)
    own_llama, vllm_llama = [*own[:3], *of_llama], [*vllm[:2], *of_llama]
    return [
        Part("decode-1", "Millrace", [*own, "--batch", "1"], 60),
        Part("decode-64", "Millrace", [*own, "--batch", "64"], 60),
        Part("decode-1-codes", "Millrace, int8", [*own, "--batch", "1", "--weights", "int8"], 90),
        Part("decode-1-codes", "Millrace, fp8", [*own, "--batch", "1", "--weights", "fp8"], 90),
        Part("decode-1-codes", "Millrace, nf4", [*own, "--batch", "1", "--weights", "nf4"], 90),
        Part("decode-64-codes", "Millrace, int8", [*own, "--batch", "64", "--weights", "int8"], 90),
        Part("decode-64-codes", "Millrace, fp8", [*own, "--batch", "64", "--weights", "fp8"], 90),
        Part("decode-64-codes", "Millrace, nf4", [*own, "--batch", "64", "--weights", "nf4"], 90),
        Part("decode-1", "torch.compile, CUDA graph", [*words, "--form", "blocks", "--batch", "1"], 150),
        Part("decode-64", "torch.compile, CUDA graph", [*words, "--form", "blocks", "--batch", "64"], 150),
        Part("decode-1", "torch eager, CUDA graph", [*words, "--form", "eager", "--batch", "1"], 60),
        Part("decode-64", "torch eager, CUDA graph", [*words, "--form", "eager", "--batch", "64"], 60),
        Part("decode-64-llama", "Millrace", [*own_llama, "--batch", "64"], 60),
        Part("decode-64-llama", "vLLM", [*vllm_llama, "--batch", "64"], 240),
        Part("decode-1", "vLLM", [*vllm, "--batch", "1"], 240),
        Part("decode-64", "vLLM", [*vllm, "--batch", "64"], 240),
        Part("decode-1-codes", "vLLM, fp8", [*vllm, "--batch", "1", "--fp8"], 240),
        Part("decode-64-codes", "vLLM, fp8", [*vllm, "--batch", "64", "--fp8"], 240),
        Part("decode-1-codes", "transformers generate(), bitsandbytes' NF4",
             [*words, "--form", "generate", "--nf4", "--batch", "1", "--rounds", "2"], 200),
        Part("decode-1", "transformers generate()", [*words, "--form", "generate", "--batch", "1", "--rounds", "2"], 150),
        Part("decode-64", "transformers generate()", [*words, "--form", "generate", "--batch", "64", "--rounds", "2"], 150),
    ]


def kernels(o):
    words = ["{programs}/ops_bench", "--device", "cuda", "--rounds", "3", "--tokens", "16384", "--length", "4096"]
    llama = [*words, *"--hidden 4096 --intermediate 11008 --heads 32 --vocab 32000".split()]
    gpt2_words = [*words[:-2], *"--length 1024 --hidden 768 --intermediate 3072 --heads 12 --vocab 50257".split()]
    return [Part("kernels", "ops of Llama-2-7B", llama, 90, "text"), Part("kernels", "ops of GPT-2 124M", gpt2_words, 90, "text")]


STAGES = {"check": check, "sanitizers": sanitizers, "curve": curve, "llama7b": llama7b, "gpt2": gpt2, "bert": bert, "lora": lora, "decode": decode, "sst2": sst2, "kernels": kernels}
