"""Runs the parts of a stage: each in a process of its own, with a time limit, and with less memory if it did not suffice."""
import datetime
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import profile_steps
import stages

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|bad_alloc", re.IGNORECASE)


def query(fields):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], capture_output=True,
                              text=True, timeout=30)
        return [field.strip() for field in done.stdout.splitlines()[0].split(",")]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return []


class Clocks:
    """Samples the GPU's clock and power while a program runs."""

    def __enter__(self):
        self.samples, self.stop = [], threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while not self.stop.wait(1):
            try:
                clock, power, busy = (float(value) for value in query("clocks.sm,power.draw,utilization.gpu"))
            except ValueError:  # the driver does not know one of them
                continue
            if busy > 50:
                self.samples.append((clock, power))

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def summary(self):
        if not self.samples:
            return {}
        return {"sm_mhz": statistics.median(s[0] for s in self.samples), "watts": statistics.median(s[1] for s in self.samples)}


def machine(python):
    found = dict(zip(("card", "driver", "max SM MHz", "power limit W"), query("name,driver_version,clocks.max.sm,power.limit")))
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    return found | {"torch": version.stdout.strip() or "none"}


@functools.cache
def torch_libraries(python):
    """The folders of the libraries of PyTorch and CUDA, joined by colons."""
    code = ("import glob, importlib.util, os; at = os.path.dirname(importlib.util.find_spec('torch').origin); "
            "print(':'.join([at + '/lib'] + glob.glob(os.path.dirname(at) + '/nvidia/*/lib')))")
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def environment_of(part, o):
    """Millrace's programs find the libraries that a bundle carries, and those of PyTorch. PyTorch finds its own."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1", MILLRACE_BIN=str(o.programs), MILLRACE_SOURCE=str(stages.SOURCE), **part.environment)
    if part.command[0] != "{python}" or part.starts_programs:
        folders = [str(o.programs.parent / "lib"), torch_libraries(o.python), os.environ.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return environment


def run_process(command, limit, environment, log):
    """Runs a program in a group of its own. Returns its exit status (None: stopped at the limit) and its output."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    log.write(f"\n$ {' '.join(command)}\n{texts[0]}{texts[1]}\n[{status}]\n")
    log.flush()
    return status, *texts


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
    return None


def outcome_of_tests(output, status):
    """The lines of GoogleTest or of a script that say how many tests passed and failed."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"tests? ran|\bhold\b|not run|PASSED|FAILED|SKIPPED|passed|failed", line)]
    return f"exit status {status}: " + "; ".join(lines[-6:]).replace("|", "/")


def steps_seen(output):
    """What a program that was stopped said of its steps."""
    seconds = [float(found) for found in re.findall(r"^step \d+: ([0-9.]+) s", output, re.MULTILINE)]
    return f"; last of {len(seconds)} steps: {statistics.median(seconds[-3:]):.3f} s" if seconds else ""


def attempt(part, words, limit, o, log):
    """Runs a part once. Returns what is to be recorded, and whether the GPU's memory was too small."""
    environment = environment_of(part, o)
    names = {"programs": o.programs, "python": o.python, "source": stages.SOURCE}
    command = [word.format(**names) for word in [*part.command, *words]]
    with tempfile.TemporaryDirectory() as folder, Clocks() as clocks:
        trace = pathlib.Path(folder) / "trace.json"
        if part.kind == "profile":
            environment |= {"CUDA_INJECTION64_PATH": str(o.programs / "libcupti_trace.so"), "MILLRACE_TRACE": str(trace)}
        try:
            status, out, err = run_process(command, limit, environment, log)
        except OSError as error:
            return {"error": f"did not start: {error.strerror}"}, False
        record = clocks.summary()
        if part.kind == "test":
            found = {"outcome": outcome_of_tests(out + err, status) if status is not None else f"stopped after {limit:.0f} s"}
            return record | {"result": found, "failed": status != 0}, False
        result = {"text": out} if part.kind == "text" else last_json(out)
        if status != 0 or result is None:
            is_memory = OUT_OF_MEMORY.search(out + err) is not None
            lines = [line for line in err.splitlines() if line.strip()]
            why = f"stopped after {limit:.0f} s{steps_seen(err)}" if status is None else "out of GPU memory" if is_memory else \
                f"exit status {status}: " + ("; ".join(lines[-2:])[-300:].replace("|", "/") or "no message")
            return record | {"error": why}, is_memory
        if part.kind == "profile":
            if not trace.exists():
                return record | {"error": "no trace was written: is libcupti_trace.so beside the programs?"}, False
            record["profile"] = profile_steps.summarize(json.loads(trace.read_text()), 4, 14)
        return record | {"result": result}, False


def run_part(part, o, remaining, log):
    began = time.monotonic()
    record, words, too_large = {}, (), True
    for words in ((), *part.fallbacks):
        limit = min(part.limit, remaining - (time.monotonic() - began))
        if limit < 5:
            break
        record, too_large = attempt(part, words, limit, o, log)
        if not too_large:
            break
    record |= {"fallback": list(words)} if words and "result" in record else {}
    return record | {"seconds": round(time.monotonic() - began, 1)}


def name_of(record):
    return tuple(record[key] for key in ("stage", "work", "program", "round", "command"))


def run_stage(o, results, add):
    parts = stages.STAGES[o.stage](o)
    about = machine(o.python)
    done = set() if o.again else {name_of(result) for result in results if "result" in result and not result.get("failed")}
    end = time.monotonic() + o.budget
    with (o.results / "log.txt").open("a") as log:
        for round_ in range(o.rounds):
            for part in parts:
                remaining = end - time.monotonic()
                record = {"stage": o.stage, "work": part.work, "program": part.program, "round": round_, "kind": part.kind,
                          "command": " ".join(part.command), "layers": o.layers}
                if name_of(record) in done:
                    print(f"{part.work}, {part.program}: measured before", flush=True)
                    continue
                if o.only and not re.search(o.only, part.program):
                    continue
                if part.needs and not pathlib.Path(part.needs).exists():
                    record["error"] = f"skipped: no {part.needs}"
                elif remaining < 20:
                    record["error"] = "skipped: the time of the stage was over"
                else:
                    record |= run_part(part, o, remaining, log)
                time_ = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                add(record | {"machine": about, "time": time_})
                said = record.get("error") or record["result"].get("text") or json.dumps(record["result"])
                print(f"{part.work}, {part.program} ({record.get('seconds', 0)} s): {said}", flush=True)
