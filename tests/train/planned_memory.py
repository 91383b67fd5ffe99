"""Memory that the planner predicts beside the largest resident set of real ranks, for one layout.

    planned_memory.py BIN_FOLDER PARALLEL

PARALLEL is the content of train.parallel, for two ranks. Medians of runs are within 5 % of the prediction (docs/scale.md); the
heap of a single run has more or fewer holes, by some 2 %.
"""
import importlib.util
import json
import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARE = 0.08


def load_benchmark():
    """Returns the benchmark that makes such runs and reads what they used."""
    path = ROOT / "benchmarks/plan/beside_runs.py"
    spec = importlib.util.spec_from_file_location("beside_runs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    programs, parallel = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    runs = load_benchmark()
    words = random.Random(1)
    lines = [json.dumps({"text": " ".join(f"w{words.randrange(50)}" for _ in range(60))}) for _ in range(1000)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
        case = runs.Case(folder, programs, ("Llama 34M", runs.LLAMA, 2, parallel, ""), cpu=True, steps=3, global_batch=8)
        for _ in range(3):  # other work on the machine changes when memory is freed
            case.memory = 0
            case.run(programs)
            error = case.predicted_memory / case.memory - 1
            print(f"{parallel}: predicted {case.predicted_memory / 1e6:.0f} MB, measured {case.memory / 1e6:.0f} MB, {error:+.1%}")
            if abs(error) <= SHARE:
                return
    raise SystemExit(f"the error is more than {SHARE:.0%}, three times")


if __name__ == "__main__":
    main()
