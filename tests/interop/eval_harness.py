#!/usr/bin/env python3
"""Compares `millrace eval` with lm-evaluation-harness on the same models and documents, and with its formulas over transformers.

    eval_harness.py --millrace build/release/bin/millrace

Models and documents are made here and lie in a bucket of a `millrace s3d`. The harness is used where it is installed
(tests/install-peers FOLDER harness); without it, its formulas, written down here, are what counts.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from checkpoint_formats import BUCKET, PEERS, InBucket, fast_tokenizer, need, tiny_model, torch
from s3d_interop import Endpoint

WORDS = "the mill turns a stone and grinds grain to flour while water runs down its race in spring".split()
# Both compute in float32 and add in different orders.
LOGPROB_TOLERANCE, PERPLEXITY_TOLERANCE = 2e-4, 1e-4


def words(numbers, least, most):
    return " ".join(numbers.choice(WORDS) for _ in range(numbers.randint(least, most)))


def make_documents():
    numbers = random.Random(5)
    return {
        "perplexity": [{"text": words(numbers, 3, 60) + numbers.choice(["", "\n\n", ". "]) + words(numbers, 3, 150)}
                       for _ in range(12)],
        "hellaswag": [{"activity_label": words(numbers, 1, 2).title(), "ctx_a": words(numbers, 4, 12) + " [header] he.",
                       "ctx_b": words(numbers, 2, 4).upper(), "ctx": "unused",
                       "endings": [words(numbers, 1, 9) + " [title] now  so" for _ in range(4)],
                       "label": str(numbers.randrange(4))} for _ in range(40)],
        "mmlu": [{"question": " " + words(numbers, 4, 12) + "? ", "choices": [words(numbers, 1, 3) for _ in range(4)],
                  "answer": numbers.randrange(4), "subject": "water_power"} for _ in range(20)],
        "match": [{"prompt": words(numbers, 3, 9), "answer": "?"} for _ in range(10)],
    }


class Reference:
    """The harness's formulas."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.length = model.config.max_position_embeddings

    def encode(self, text):
        return self.tokenizer.encode(text)

    @torch.no_grad()
    def score(self, context, continuation):
        tokens = (context + continuation)[-(self.length + 1):]
        logits = self.model(torch.tensor([tokens[:-1]])).logits[0, -len(continuation):].double()
        return logits.log_softmax(1).gather(1, torch.tensor(continuation)[:, None]).sum().item()

    def pair(self, context, continuation):
        whole, before = self.encode(context + continuation), self.encode(context)
        return self.score(before, whole[len(before):])

    def choices(self, questions):
        """Returns the log-likelihoods of each document's choices, and acc and acc_norm with their errors."""
        scores = [[self.pair(text, " " + choice) for choice in choices] for text, choices, _ in questions]
        right, by_length = [], []
        for (_, choices, gold), of_choices in zip(questions, scores):
            right.append(of_choices.index(max(of_choices)) == gold)
            norm = [score / len(choice) for score, choice in zip(of_choices, choices)]
            by_length.append(norm.index(max(norm)) == gold)
        return scores, {"acc": mean_and_error(right), "acc_norm": mean_and_error(by_length)}

    def perplexity(self, documents):
        logprobs = []
        for document in documents:
            tokens, logprob = self.encode(document["text"]), 0
            for begin in range(0, len(tokens), self.length):
                window = tokens[begin:begin + self.length]
                before = tokens[begin + len(window) - self.length - 1:begin] if begin else [self.tokenizer.bos_token_id]
                logprob += self.score(before, window)
            logprobs.append(logprob)
        count = sum(len(re.split(r"\s+", document["text"])) for document in documents)
        size = sum(len(document["text"].encode()) for document in documents)
        return {"word_perplexity": math.exp(-sum(logprobs) / count), "byte_perplexity": math.exp(-sum(logprobs) / size),
                "bits_per_byte": -sum(logprobs) / size / math.log(2)}


def mean_and_error(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def hellaswag(document):
    def clean(text):
        return re.sub("\\[.*?\\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    text = clean(f"{document['activity_label']}: {document['ctx_a']} {document['ctx_b'].capitalize()}")
    return text, [clean(ending) for ending in document["endings"]], int(document["label"])


def mmlu(document):
    options = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", document["choices"]))
    return document["question"].strip() + options + "\nAnswer:", list("ABCD"), document["answer"]


def with_examples(documents, count):
    description = "The following are multiple choice questions (with answers) about water power.\n\n"
    questions = [mmlu(document) for document in documents]
    before = "".join(f"{text} {choices[gold]}\n\n" for text, choices, gold in questions[:count])
    return [(description + before + text, choices, gold) for text, choices, gold in questions]


class Evaluations:
    def __init__(self, millrace, family, folder):
        self.millrace, self.family, self.folder = millrace, family, folder

    def run(self, task, *flags, data=None):
        samples = self.folder / "samples.jsonl"
        done = subprocess.run(
            [self.millrace.path, "--json", "eval", f"{BUCKET}/{self.family}", "--task", task, "--data",
             f"{BUCKET}/{data or task}.jsonl", "--samples", samples, "--threads", "1", *map(str, flags)],
            env=self.millrace.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), [json.loads(line) for line in samples.read_text().splitlines()]


def check_choices(what, report, samples, expected_scores, expected):
    for sample, scores in zip(samples, expected_scores, strict=True):
        for got, want in zip(sample["logprobs"], scores, strict=True):
            assert abs(got - want) < LOGPROB_TOLERANCE * max(1, abs(want)), (what, got, want)
    for name, (value, error) in expected.items():
        got = report["metrics"][name]
        assert abs(got["value"] - value) < 1e-9 and abs(got["stderr"] - error) < 1e-9, (what, name, got, value, error)


def check_family(millrace, family, tokenizer, odd, documents, folder):
    import transformers

    model = tiny_model(transformers, family, len(tokenizer), odd)
    model.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    millrace.run("sync", folder / family, f"{BUCKET}/{family}")
    evaluations, reference = Evaluations(millrace, family, folder), Reference(model, tokenizer)

    report, _ = evaluations.run("perplexity")
    for name, want in reference.perplexity(documents["perplexity"]).items():
        assert abs(report["metrics"][name]["value"] / want - 1) < PERPLEXITY_TOLERANCE, (family, name, report, want)
    questions = [hellaswag(document) for document in documents["hellaswag"]]
    check_choices(f"{family}, hellaswag", *evaluations.run("hellaswag"), *reference.choices(questions))
    for shots in (0, 2):
        flags = ["--shots", shots, "--shots-data", f"{BUCKET}/mmlu.jsonl"] if shots else []
        expected = reference.choices(with_examples(documents["mmlu"], shots))
        report, samples = evaluations.run("mmlu", *flags)
        check_choices(f"{family}, mmlu, {shots}", report, samples, *expected)
        assert report["subjects"]["water_power"] == report["metrics"]["acc"], report

    # Greedy answers, of which every third is not what the model says.
    for i, document in enumerate(documents["match"]):
        ids = tokenizer.encode(document["prompt"])
        made = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=8,
                              pad_token_id=0)
        said = tokenizer.decode(made[0, len(ids):], skip_special_tokens=True).split("\n")[0].strip()
        document["answer"] = said if i % 3 else said + "x"
    (folder / "match.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents["match"]))
    millrace.run("cp", folder / "match.jsonl", f"{BUCKET}/match.jsonl")
    report, _ = evaluations.run("match", "--max-tokens", 8)
    assert abs(report["metrics"]["exact_match"]["value"] - 0.6) < 1e-9, report
    print(f"{family}: numbers are those of the harness's formulas")
    return model, evaluations


def check_harness(model, tokenizer, evaluations, documents, folder):
    """The harness itself, on its own code for these tasks."""
    sys.path.append(str(PEERS.parents[2] / "harness"))
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        print(f"lm-evaluation-harness is not here: {error}")
        return
    for name in ("perplexity", "hellaswag", "mmlu"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents[name]))

    def task(name, **more):
        return {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
                "test_split": "test", "metadata": {"version": 1}} | more

    def metrics(*names):
        return [{"metric": name} for name in names]

    tasks = [
        task("perplexity", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="text",
             metric_list=metrics("word_perplexity", "byte_perplexity", "bits_per_byte")),
        task("hellaswag", output_type="multiple_choice", metric_list=metrics("acc", "acc_norm"),
             doc_to_text=lambda document: hellaswag(document)[0], doc_to_choice=lambda document: hellaswag(document)[1],
             doc_to_target=lambda document: hellaswag(document)[2]),
        task("mmlu", output_type="multiple_choice", metric_list=metrics("acc", "acc_norm"),
             doc_to_text="{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:",
             doc_to_choice=list("ABCD"), doc_to_target="answer",
             description="The following are multiple choice questions (with answers) about water power.\n\n"),
    ]
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu", max_length=model.config.max_position_embeddings)
    results = lm_eval.simple_evaluate(model=lm, tasks=tasks, bootstrap_iters=0)["results"]
    for name in ("perplexity", "hellaswag", "mmlu"):
        report, _ = evaluations.run(name)
        for metric, got in report["metrics"].items():
            want = results[name].get(f"{metric},none")
            if want is None:
                continue
            assert abs(got["value"] / want - 1) < PERPLEXITY_TOLERANCE if want else got["value"] == 0, (name, metric, got, want)
            error = results[name].get(f"{metric}_stderr,none")
            if isinstance(error, float):
                assert abs(got["stderr"] - error) < 1e-9, (name, metric, got, error)
    print("lm-evaluation-harness has the same numbers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    transformers, tokenizers = need("transformers"), need("tokenizers")
    tokenizer = fast_tokenizer(transformers, tokenizers)
    odd = [i for i in range(2, len(tokenizer)) if not tokenizer.decode([i]).isascii()]
    documents = make_documents()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        with Endpoint(arguments.millrace, folder) as endpoint:
            millrace = InBucket(arguments.millrace, endpoint, folder)
            for name, lines in documents.items():
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in lines))
                millrace.run("cp", folder / f"{name}.jsonl", f"{BUCKET}/{name}.jsonl")
            for family in ("gpt2", "llama"):
                model, evaluations = check_family(millrace, family, tokenizer, odd, documents, folder)
            check_harness(model, tokenizer, evaluations, documents, folder)


if __name__ == "__main__":
    main()
