"""Lets OpenAI's own Node client talk to `millrace serve`, unchanged.

    python3 node_client.py --millrace PROGRAM

The model is tiny and talks nonsense (tiny_model.py). Exit status: 0 passed, 77 node or its package `openai` is missing (tests/install-peers
installs it), 1 otherwise."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from tiny_model import write_model

PATIENCE_S = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    modules = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nowhere")) / "node/node_modules"
    if not shutil.which("node") or not (modules / "openai").is_dir():
        print("skipped: there is no node, or MILLRACE_PEERS has no node/node_modules/openai")
        return 77
    with tempfile.TemporaryDirectory(prefix="millrace-node-") as work:
        folder = pathlib.Path(work)
        write_model(folder / "model")
        # Node looks for packages beside the script.
        shutil.copy(pathlib.Path(__file__).with_name("node_client.mjs"), folder)
        (folder / "node_modules").symlink_to(modules)
        port_file = folder / "port"
        server = subprocess.Popen([arguments.millrace, "serve", str(folder / "model"), "--name", "small", "--listen", "127.0.0.1:0",
                                   "--port-file", str(port_file), "--threads", "1", "--device", "cpu", "--quiet"])
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not port_file.exists():
                assert server.poll() is None and time.monotonic() < deadline, "millrace serve did not start"
                time.sleep(0.02)
            url = f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
            asked = subprocess.run(["node", "node_client.mjs", url], cwd=folder, timeout=PATIENCE_S)
        finally:
            server.terminate()
            ended = server.wait(PATIENCE_S)
    return 1 if asked.returncode or ended else 0


sys.exit(main())
