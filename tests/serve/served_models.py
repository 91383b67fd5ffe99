"""Models that `millrace serve` has beside each other: newer checkpoints of a run, and a model that guesses.

    python3 served_models.py follow|follow_quantized|draft --millrace PROGRAM

The models are tiny and talk nonsense (tiny_model.py), each its own. Needs nothing but Python.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request

from tiny_model import write_model

PATIENCE_S = 120
PROMPT = "The mill"


class Server:
    """`millrace serve` of a model, until the block ends."""

    def __init__(self, millrace, model, folder, *flags):
        self.cache = folder / "cache"
        self.port_file = folder / "port"
        self.port_file.unlink(missing_ok=True)
        self.log = folder / "log"
        self.process = subprocess.Popen([millrace, "serve", str(model), "--listen", "127.0.0.1:0", "--port-file",
                                         str(self.port_file), "--threads", "1", *map(str, flags)],
                                        stderr=self.log.open("w"), env=os.environ | {"XDG_CACHE_HOME": str(self.cache)})

    def __enter__(self):
        wait_until(lambda: self.port_file.exists() or self.process.poll() is not None, "millrace serve to start")
        assert self.process.poll() is None, self.log.read_text()
        self.url = f"http://127.0.0.1:{self.port_file.read_text().strip()}"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()

    def text(self, **body):
        body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0} | body
        with urllib.request.urlopen(urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())) as answer:
            return json.load(answer)["choices"][0]["text"]

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def wait_until(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


def refusal(millrace, *arguments):
    done = subprocess.run([millrace, "serve", *map(str, arguments), "--listen", "127.0.0.1:0"], capture_output=True, text=True,
                          timeout=PATIENCE_S)
    assert done.returncode != 0, arguments
    return done.stderr


def commit(millrace, model, run, step):
    subprocess.run([millrace, "--quiet", "ckpt", "import", model, run, "--step", str(step)], check=True,
                   stdout=subprocess.DEVNULL)


def test_follow(millrace, folder):
    run, expected = folder / "run", []
    for step in (1, 2):
        write_model(folder / f"model-{step}", seed=step)
        with Server(millrace, folder / f"model-{step}", folder) as server:
            expected.append(server.text())
    assert expected[0] != expected[1]

    commit(millrace, folder / "model-1", run, 1)
    with Server(millrace, run, folder, "--follow", "--follow-every", "100ms") as server:
        assert server.text() == expected[0]
        texts, ends = [[] for _ in range(3)], threading.Event()

        def ask(into):
            while not ends.is_set():
                into.append(server.text())

        clients = [threading.Thread(target=ask, args=(into,)) for into in texts]
        for client in clients:
            client.start()
        commit(millrace, folder / "model-2", run, 2)
        wait_until(lambda: all(into and into[-1] == expected[1] for into in texts), "the newer checkpoint")
        ends.set()
        for client in clients:
            client.join()
        for into in texts:  # first those of the old one, then those of the new one, and no others
            old = into.count(expected[0])
            assert into == [expected[0]] * old + [expected[1]] * (len(into) - old), into
        assert server.metric("millrace_model_step") == 2 and server.metric("millrace_model_reloads_total") == 1

        # A checkpoint whose bytes are not those of its manifest, and one of a model with another context.
        commit(millrace, folder / "model-1", folder / "damaged", 3)
        damaged = max((folder / "damaged" / "step-00000003").rglob("*.safetensors"), key=lambda file: file.stat().st_size)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 0xFF
        damaged.write_bytes(content)
        shutil.copytree(folder / "damaged" / "step-00000003", run / "step-00000003")
        shutil.copy(folder / "damaged" / "step-00000003.json", run / "arriving")
        (run / "arriving").rename(run / "step-00000003.json")
        wait_until(lambda: server.metric("millrace_model_reload_failures_total") == 1, "the damaged checkpoint")
        write_model(folder / "model-4", seed=4)
        config = folder / "model-4" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 256}))
        commit(millrace, folder / "model-4", run, 4)
        wait_until(lambda: server.metric("millrace_model_reload_failures_total") == 2, "the other model")
        assert server.text() == expected[1], "it keeps what it has"
        log = server.log.read_text()
        assert "keeping the old one" in log and "CRC" in log.upper() and "context" in log, log
    assert "wants a run" in refusal(millrace, folder / "model-1", "--follow")
    assert "--step" in refusal(millrace, run, "--follow", "--step", "1")
    assert "--follow-every" in refusal(millrace, run, "--follow", "--follow-every", "0s")
    assert "--follow changes the weights" in refusal(millrace, run, "--follow", "--adapter", "a=b")


def test_follow_quantized(millrace, folder):
    """Each checkpoint is quantized, and leaves nothing on the disk."""
    run, expected = folder / "run", []
    for step in (1, 2):
        write_model(folder / f"model-{step}", seed=step)
        with Server(millrace, folder / f"model-{step}", folder, "--weights", "int8") as server:
            expected.append(server.text())
    assert expected[0] != expected[1]
    shutil.rmtree(folder / "cache")
    commit(millrace, folder / "model-1", run, 1)
    with Server(millrace, run, folder, "--follow", "--follow-every", "100ms", "--weights", "int8") as server:
        assert server.text() == expected[0]
        commit(millrace, folder / "model-2", run, 2)
        wait_until(lambda: server.metric("millrace_model_step") == 2, "the newer checkpoint")
        assert server.text() == expected[1]
        left = sorted(path.name for path in (folder / "cache").rglob("*") if path.is_file())
        assert left == ["one-load.lock"], left


def test_draft(millrace, folder):
    write_model(folder / "large", seed=1)
    write_model(folder / "other", seed=2)
    wishes = [{}, {"temperature": 0.8, "seed": 5}, {"temperature": 1, "top_p": 0.9, "seed": 6, "n": 2},
              {"guided_regex": "[a-z]{20,40}", "temperature": 1, "seed": 7}]
    with Server(millrace, folder / "large", folder, "--draft-tokens", "0") as server:
        expected = [server.text(**wish) for wish in wishes]
    for draft, agrees in (("other", False), ("large", True)):
        with Server(millrace, folder / "large", folder, "--draft", folder / draft) as server:
            assert [server.text(**wish) for wish in wishes] == expected, f"with the draft {draft}"
            drafted, accepted = (server.metric(f"millrace_{what}_tokens_total") for what in ("drafted", "accepted"))
            assert drafted > 50 and (accepted == drafted if agrees else accepted < drafted), (drafted, accepted)
            assert server.metric("millrace_failed_drafts_total") == 0
    tokenizer = folder / "other" / "tokenizer.json"
    tokens = json.loads(tokenizer.read_text())
    letters = tokens["model"]["vocab"]
    letters["a"], letters["b"] = letters["b"], letters["a"]
    tokenizer.write_text(json.dumps(tokens))
    assert "a draft model has the same tokens" in refusal(millrace, folder / "large", "--draft", folder / "other")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["follow", "follow_quantized", "draft"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        globals()[f"test_{arguments.test}"](arguments.millrace, pathlib.Path(folder))


if __name__ == "__main__":
    main()
