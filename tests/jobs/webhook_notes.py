"""Runs jobs whose ranks are shell scripts, and a server that gets their notes (log.webhook).

    python3 webhook_notes.py --millrace PROGRAM
"""
import argparse
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

JOB = """name: noted
data: {{sources: [{{url: "s3://corpus/wiki/*.jsonl"}}], tokenizer: "s3://models/tokenizer.model"}}
train: {{steps: 100}}
run: {{processes_per_node: 1, max_restarts: 1}}
log: {{{log}}}
"""
# The first attempt fails, with a secret in its last lines.
RANK = """#!/bin/sh
echo 1 > $MILLRACE_HEARTBEAT_FILE
[ $MILLRACE_ATTEMPT != 1 ] || { sleep 0.3; echo the-secret-of-a-rank >&2; exit 7; }
echo 2 > $MILLRACE_HEARTBEAT_FILE
sleep 0.3
"""
SECRET = "a-secret-path"


class Receiver(http.server.BaseHTTPRequestHandler):
    status, notes, paths = 200, [], []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).notes.append(json.loads(body))
        type(self).paths.append((self.path, self.headers["Content-Type"], b"the-secret-of-a-rank" in body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def run(program, folder, log, *, status=200):
    """Runs a job with these keys of `log`. Returns the process and the notes."""
    Receiver.status, Receiver.notes, Receiver.paths = status, [], []
    (folder / "job.yaml").write_text(JOB.format(log=log))
    env = {**os.environ, "MILLRACE_STATE_DIR": str(folder / "state")}
    done = subprocess.run([program, "job", "run", folder / "job.yaml", "--program", folder / "rank.sh", "--no-check"],
                          env=env, capture_output=True, text=True, timeout=60)
    return done, Receiver.notes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    program = parser.parse_args().millrace
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rank.sh").write_text(RANK)
        (folder / "rank.sh").chmod(0o700)

        done, notes = run(program, folder, f'webhook: "{url}/notes"')
        assert done.returncode == 0, done
        assert [note["event"] for note in notes] == ["start", "failure", "done"], notes
        assert all(note["job"] == "noted" and note["time"].startswith("20") for note in notes), notes
        assert notes[1]["rank"] == 0 and "exit status 7" in notes[1]["reason"], notes
        assert notes[2]["text"].startswith("job noted: ") and notes[2]["restarts"] == 1, notes
        assert all(path == ("/notes", "application/json", False) for path in Receiver.paths), Receiver.paths

        # A server that fails, and a URL that is a secret: the job goes on, and the URL is nowhere.
        (folder / "url").write_text(f"{url}/{SECRET}\n")
        done, notes = run(program, folder, f'webhook_file: "{folder}/url"', status=500)
        assert done.returncode == 0 and "the webhook did not take a note" in done.stderr, done
        assert notes and Receiver.paths[0][0] == f"/{SECRET}", Receiver.paths
        kept = [file for file in (folder / "state").rglob("*") if file.is_file() and SECRET in file.read_text()]
        assert not kept and SECRET not in done.stdout + done.stderr, (kept, done)

        server.shutdown()
        server.server_close()  # nobody listens there any more
        begin = time.monotonic()
        done, notes = run(program, folder, f'webhook: "{url}/notes"')
        assert done.returncode == 0 and time.monotonic() - begin < 30, done

        (folder / "url").write_text("no url\n")
        for log, why in ((f'webhook_file: "{folder}/url"', "is no URL"), ('webhook: "ftp://x"', "should be a URL"),
                         ('webhook: "https://user:word@x/"', "without a user's name"),
                         ('webhook: "http://x", webhook_file: /x', "give one of them")):
            done, _ = run(program, folder, log)
            assert done.returncode == 2 and why in done.stderr and "word@" not in done.stderr, (log, done)
    print("notes arrive, and servers that fail do not disturb jobs")


if __name__ == "__main__":
    sys.exit(main())
