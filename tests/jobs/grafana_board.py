"""Checks the Grafana boards against a real job, a real server of its model and a real Prometheus.

    python3 grafana_board.py --millrace PROGRAM --source FOLDER

The job trains with log.metrics_listen, and a server answers for its checkpoint. Prometheus, a package of Debian, scrapes
both; each query of the boards must give numbers. What this machine may not have, GPUs and links between machines, comes
from a page of this test; its names must be in the source. Skipped (77) where there is no prometheus.
"""
import argparse
import contextlib
import http.server
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
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
log: {{metrics_listen: "127.0.0.1:{port}", every_steps: 50, metric_definitions: [{{Name: train_loss, Regex: "'loss': ([0-9.]*)"}}]}}
"""
# What a run on two machines with GPUs would tell, besides.
ELSEWHERE = """millrace_train_rank_gpu_utilization{rank="0"} 0.9
millrace_train_rank_gpu_memory_bytes{rank="0"} 1e10
millrace_train_rank_gpu_celsius{rank="0"} 61
millrace_train_rank_gpu_watts{rank="0"} 350
millrace_train_link_bytes_per_second{from="a",to="b"} 1e9
millrace_train_link_seconds{from="a",to="b"} 5e-5
millrace_train_all_reduce_bytes_per_second 9e8
millrace_train_all_reduce_seconds 1e-4
"""
BOARDS = ("millrace-training.json", "millrace-serving.json")
PROMPTS = 2  # requests at the same time, with the same beginning


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
        if error.code == 503:  # it has not opened its database yet
            return {"status": "away"}
        return json.load(error)  # the reason why a query is wrong
    except OSError:
        return {"status": "away"}


def write_texts(file):
    words, chosen = "the mill race turns water wheel stone grain flour bread".split(), random.Random(5)
    file.write_text("".join(json.dumps({"text": " ".join(chosen.choices(words, k=40))}) + "\n" for _ in range(300)))


def wait_for_numbers(port, queries, processes, refusals):
    """Returns once each query has given a number."""
    left, end = dict.fromkeys(queries, "not asked"), time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < end, f"no numbers: {left}"
        assert all(process.poll() is None for process in processes), "the job, the server or Prometheus has ended"
        assert not refusals, refusals
        for query in list(left):
            answer = ask(port, query[1])
            assert answer["status"] != "error", (query, answer)
            values = [each["value"][1] for each in answer.get("data", {}).get("result", [])]
            if values and all(value not in ("NaN", "+Inf") for value in values):
                del left[query]
            else:
                left[query] = values
        time.sleep(0.5)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(ELSEWHERE.encode())

    def log_message(self, *_):
        pass


def generate(port, stop, refusals):
    """Has the server make texts until `stop` is set. Now and then a client goes away. Adds what the server refuses."""
    for number in itertools.count():
        if stop.is_set():
            return
        body = json.dumps({"prompt": "the mill", "max_tokens": 12, "stream": number % 4 == 3}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                if number % 4 != 3:
                    response.read()
        except urllib.error.HTTPError as error:
            refusals.append(error.read())
            return
        except OSError:  # it does not listen yet
            time.sleep(0.2)


def end_all(processes):
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(timeout=60)


def await_checkpoint(folder, process):
    end = time.monotonic() + PATIENCE_S
    while not any(path.name.startswith("step-") and path.suffix == ".json" for path in folder.glob("step-*.json")):
        assert process.poll() is None and time.monotonic() < end, "the job makes no checkpoint"
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        print("there is no prometheus (a package of Debian)")
        return 77
    boards = [json.loads((arguments.source / "deploy/grafana" / name).read_text()) for name in BOARDS]
    queries = [query for board in boards for query in queries_of(board)]
    source = "".join(path.read_text() for path in (arguments.source / "millrace/train/reporting").glob("*.cc"))
    for line in ELSEWHERE.splitlines():
        assert f'"{re.match(r"[a-z_]+", line)[0]}"' in source, line
    stop, refusals = threading.Event(), []
    with tempfile.TemporaryDirectory() as name, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as page, \
            contextlib.ExitStack() as stack:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        stack.callback(page.shutdown)
        folder = pathlib.Path(name)
        scraped, served, port = free_port(), free_port(), free_port()
        write_texts(folder / "texts.jsonl")
        (folder / "job.yaml").write_text(JOB.format(
            folder=folder, tokenizer=arguments.source / "millrace/train/testdata/tokenizer.model", port=scraped))
        (folder / "prometheus.yaml").write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs: [{job_name: board, static_configs: [{targets: ["
            f"'127.0.0.1:{scraped}', '127.0.0.1:{served}', '127.0.0.1:{page.server_port}']}}]}}]\n")
        env = {**os.environ, "MILLRACE_STATE_DIR": str(folder / "state")}
        with open(folder / "log", "wb") as log:
            job = subprocess.Popen([arguments.millrace, "job", "run", folder / "job.yaml"], env=env, stdout=log, stderr=log)
            processes = [job]
            stack.callback(end_all, processes)
            await_checkpoint(folder / "run", job)
            processes += [
                subprocess.Popen([arguments.millrace, "serve", folder / "run", "--listen", f"127.0.0.1:{served}"], env=env, stdout=log,
                                 stderr=log),
                subprocess.Popen([prometheus, f"--config.file={folder}/prometheus.yaml",
                                  f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
                                 stdout=log, stderr=log)]
        for _ in range(PROMPTS):
            asking = threading.Thread(target=generate, args=(served, stop, refusals))
            asking.start()
            stack.callback(asking.join)
        stack.callback(stop.set)  # before the threads are joined
        try:
            wait_for_numbers(port, queries, processes, refusals)
            top = subprocess.run([arguments.millrace, "--json", "top", f"http://127.0.0.1:{scraped}"], env=env,
                                 capture_output=True, text=True, check=True).stdout
            assert len(json.loads(top)["ranks"]) == 2, top
        except BaseException:
            print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
    print(f"{len(queries)} queries of {sum(len(board['panels']) for board in boards)} panels have numbers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
