#!/usr/bin/env python3
"""Serves adapters that PEFT saved over one base, many at once, and compares greedy texts with transformers and PEFT.

    adapters_peft.py --millrace build/release/bin/millrace

The base and the adapters lie in a bucket of a `millrace s3d`. Adapters have other ranks, targets and kinds (LoRA, rsLoRA,
DoRA, an adapter of the head). Also: an adapter that is broken, and memory for some of the adapters
only.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import concurrent.futures
import json
import pathlib
import tempfile
import urllib.error
import urllib.request

from checkpoint_formats import BUCKET, PROMPT, InBucket, Server, fast_tokenizer, greedy, need, tiny_model, torch
from s3d_interop import Endpoint

COUNT = 24
TARGETS = {"llama": (["q_proj", "v_proj", "down_proj"], "q_proj"), "gpt2": (["c_attn", "c_fc"], "c_attn"),
           "gptj": (["q_proj", "fc_in"], "v_proj")}


def kinds(family):
    some, one = TARGETS[family]
    return {
        "all": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
        "some": {"r": 7, "lora_alpha": 3, "use_rslora": True, "target_modules": some},
        "dora": {"r": 3, "lora_alpha": 6, "use_dora": True, "target_modules": some},
        "head": {"r": 2, "lora_alpha": 4, "target_modules": [one, "lm_head"]},
    }


class Client:
    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.port_file.read_text().strip()}"

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as answer:
            return answer.read().decode()

    def text(self, model, prompt):
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": COUNT, "temperature": 0}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + "/v1/completions", body)) as answer:
            answer = json.load(answer)
        assert answer["model"] == model, answer
        return answer["choices"][0]["text"]

    def refusal(self, model):
        try:
            self.text(model, PROMPT)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["message"]
        raise AssertionError(f"{model} was served")

    def metric(self, name):
        return int(next(line.split()[1] for line in self.get("/metrics").splitlines() if line.startswith(name + " ")))


def save_adapters(family, tokenizer, odd, folder):
    """Saves a base and its adapters, and returns the texts that transformers makes of them."""
    import peft
    import transformers

    base = tiny_model(transformers, family, len(tokenizer), odd)
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    ids = tokenizer(PROMPT)["input_ids"]
    texts = {"base": tokenizer.decode(greedy(base, ids, COUNT), skip_special_tokens=True)}
    for name, arguments in kinds(family).items():
        torch.manual_seed(len(name))
        model = peft.get_peft_model(
            tiny_model(transformers, family, len(tokenizer), odd),
            peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, init_lora_weights=False,
                            fan_in_fan_out=family == "gpt2", **arguments)).eval()
        if name == "head":  # texts of bytes that are no characters are not worth comparing
            with torch.no_grad():
                model.base_model.model.lm_head.lora_B["default"].weight[odd] = 0
        model.save_pretrained(folder / "adapters" / name)
        texts[name] = tokenizer.decode(greedy(model, ids, COUNT), skip_special_tokens=True)
    assert len(set(texts.values())) == len(texts), texts
    return texts


def check_family(millrace, tokenizer, odd, family, folder):
    texts = save_adapters(family, tokenizer, odd, folder)
    where = f"{BUCKET}/{family}"
    broken = folder / "adapters" / "broken"
    broken.mkdir()
    for file in (folder / "adapters" / "all").iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-100] if file.suffix == ".safetensors" else content)
    millrace.run("sync", folder, where)
    with Server(millrace, f"{where}/base", "--name", "base", "--adapter", f"second={where}/adapters/some",
                "--adapters", f"{where}/adapters/") as server:
        client = Client(server)
        listed = json.loads(client.get("/v1/models"))["data"]
        assert [entry["id"] for entry in listed] == ["base", "all", "broken", "dora", "head", "second", "some"], listed
        assert all(entry.get("parent") == "base" for entry in listed[1:]) and "parent" not in listed[0], listed
        wanted = [*texts, "second"] * 3
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
            got = list(pool.map(lambda name: client.text(name, PROMPT), wanted))
        for name, text in zip(wanted, got):
            assert text == texts["some" if name == "second" else name], (family, name, text, texts)
        assert client.metric("millrace_adapter_loads_total") == len(texts), "each is loaded once"
        status, message = client.refusal("broken")
        assert status == 422 and 'adapter "broken" cannot be used' in message, (status, message)
        status, message = client.refusal("absent")
        assert status == 404, (status, message)
        assert client.text("base", PROMPT) == texts["base"], "the server goes on"
        bytes_of_all = client.metric("millrace_adapter_bytes")
    # Memory for some of them: all can be used, one after the other.
    with Server(millrace, f"{where}/base", "--name", "base", "--adapters", f"{where}/adapters",
                "--adapter-memory", str(bytes_of_all // 2)) as server:
        client = Client(server)
        for name in [*texts, *texts]:
            assert client.text(name, PROMPT) == texts[name], (family, name)
        assert client.metric("millrace_adapter_evictions_total") > 0
        assert client.metric("millrace_adapter_bytes") <= bytes_of_all // 2
    print(f"{family}: texts of {len(texts) - 1} adapters and the base, mixed and with evictions, are PEFT's")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    transformers, tokenizers, _ = need("transformers"), need("tokenizers"), need("peft")
    tokenizer = fast_tokenizer(transformers, tokenizers)
    odd = [i for i in range(2, len(tokenizer)) if not tokenizer.decode([i]).isascii()]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        with Endpoint(arguments.millrace, folder) as endpoint:
            millrace = InBucket(arguments.millrace, endpoint, folder)
            for family in TARGETS:
                (folder / family).mkdir()
                check_family(millrace, tokenizer, odd, family, folder / family)


if __name__ == "__main__":
    main()
