"""Checks the Grafana board against a real job and a real Prometheus.

    python3 grafana_board.py --millrace PROGRAM --source FOLDER

The job trains with log.metrics_listen. Prometheus, a package of Debian, scrapes it; each query of the board must give
numbers. Skipped (77) where there is no prometheus.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_S = 120
JOB = """name: board
model: {{family: llama, config: {{hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64}}}}
data: {{sources: [{{url: "{folder}/texts.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: 32}}
train: {{steps: 1000000, global_batch: 4, micro_batch: 1, threads: 1}}
checkpoint: {{url: "{folder}/run", every_steps: 50}}
run: {{processes_per_node: 2}}
log: {{metrics_listen: "127.0.0.1:{port}", every_steps: 1000}}
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def queries_of(board):
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$job", ".*").replace("$instance", ".*").replace(
                "$__rate_interval", "10s")


def ask(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)  # the reason why a query is wrong
    except OSError:
        return {"status": "away"}


def write_texts(file):
    words, chosen = "the mill race turns water wheel stone grain flour bread".split(), random.Random(5)
    file.write_text("".join(json.dumps({"text": " ".join(chosen.choices(words, k=40))}) + "\n" for _ in range(300)))


def wait_for_numbers(port, queries, processes):
    """Returns once each query has given a number."""
    left, end = dict.fromkeys(queries, "not asked"), time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < end, f"no numbers: {left}"
        assert all(process.poll() is None for process in processes), "the job or Prometheus has ended"
        for query in list(left):
            answer = ask(port, query[1])
            assert answer["status"] != "error", (query, answer)
            values = [each["value"][1] for each in answer.get("data", {}).get("result", [])]
            if values and all(value not in ("NaN", "+Inf") for value in values):
                del left[query]
            else:
                left[query] = values
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        print("there is no prometheus (a package of Debian)")
        return 77
    board = json.loads((arguments.source / "deploy/grafana/millrace-training.json").read_text())
    queries = list(queries_of(board))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scraped, port = free_port(), free_port()
        write_texts(folder / "texts.jsonl")
        (folder / "job.yaml").write_text(JOB.format(
            folder=folder, tokenizer=arguments.source / "millrace/train/testdata/tokenizer.model", port=scraped))
        (folder / "prometheus.yaml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: board, static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]}}]\n")
        env = {**os.environ, "MILLRACE_STATE_DIR": str(folder / "state")}
        with open(folder / "log", "wb") as log:
            processes = [
                subprocess.Popen([arguments.millrace, "job", "run", folder / "job.yaml"], env=env, stdout=log, stderr=log),
                subprocess.Popen([prometheus, f"--config.file={folder}/prometheus.yaml",
                                  f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
                                 stdout=log, stderr=log)]
        try:
            wait_for_numbers(port, queries, processes)
            top = subprocess.run([arguments.millrace, "--json", "top", f"http://127.0.0.1:{scraped}"], env=env,
                                 capture_output=True, text=True, check=True).stdout
            assert len(json.loads(top)["ranks"]) == 2, top
        except BaseException:
            print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=60)
    print(f"{len(queries)} queries of {len(board['panels'])} panels have numbers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
