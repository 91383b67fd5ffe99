#!/usr/bin/env python3
"""Downloads repositories from our small hub server with huggingface_hub and with `millrace`: the same files.

huggingface_hub knows the real hub's API. So what it reads from the server of our tests shows that the server speaks
that API, and not only what our client expects.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.

    hub_files.py --millrace build/release/bin/millrace --server build/release/bin/hub_server
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

SKIPPED = 77
VENV = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "venv/bin/python"
TOKEN = "hf_interop"
FILES = {  # by repository; a size stands for random bytes
    "models/mill/tiny": {"config.json": b"{}", "model.safetensors": 300_000, "sub/deep/a b.txt": b"text\n", "empty": b""},
    "datasets/mill/corpus": {"README.md": b"# Corpus\n", "data/train-00000-of-00001.parquet": 120_000,
                             **{f"many/{i:04}.txt": f"{i}\n".encode() for i in range(12)}},  # three pages of a tree
}


def make_files(root):
    generator = random.Random(7)
    for repository, files in FILES.items():
        for name, content in files.items():
            path = root / repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(generator.randbytes(content) if isinstance(content, int) else content)


def files_below(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*"))
            if path.is_file() and ".cache" not in path.parts}


def check(what, good):
    print(f"{'ok' if good else 'FAIL'}: {what}", flush=True)
    if not good:
        sys.exit(1)


def compare(hub, millrace, folder):
    for repository, files in FILES.items():
        kind, name = repository.split("/", 1)
        url = f"hf://{name}/" if kind == "models" else f"hf://{repository}/"
        theirs, ours = folder / "theirs" / name, folder / "ours" / name
        api = hub.HfApi()
        info = api.repo_info(name, repo_type=kind[:-1])
        check(f"{repository}: huggingface_hub sees all names", {one.rfilename for one in info.siblings} == set(files))
        tree = {one.path for one in api.list_repo_tree(name, recursive=True, repo_type=kind[:-1]) if hasattr(one, "size")}
        check(f"{repository}: its tree has all names", tree >= set(files))
        hub.snapshot_download(name, repo_type=kind[:-1], local_dir=theirs)
        subprocess.run([millrace, "cp", "--quiet", "-r", url, f"{ours}/"], check=True)
        expected = files_below(folder / "hub" / repository)
        check(f"{repository}: huggingface_hub downloads the files", files_below(theirs) == expected)
        check(f"{repository}: millrace downloads the files", files_below(ours) == expected)
        listed = subprocess.run([millrace, "ls", "-r", f"{url.rstrip('/')}@{info.sha}/"], check=True, capture_output=True)
        check(f"{repository}: a commit is a revision for both", len(listed.stdout.splitlines()) == len(files))
    text = hub.HfFileSystem().cat_file("datasets/mill/corpus/README.md")
    ours = subprocess.run([millrace, "cat", "hf://datasets/mill/corpus/README.md"], check=True, capture_output=True)
    check("HfFileSystem reads what millrace reads", text == ours.stdout)
    for url in ("hf://datasets/mill/corpus@refs%2Fconvert%2Fparquet/a", "hf://datasets/mill/corpus@refs/convert/parquet/a",
                "hf://mill/tiny@v1/a/b", "hf://models/mill/tiny/a@b"):
        theirs = hub.utils.parse_hf_uri(url)
        said = subprocess.run([millrace, "cat", url], capture_output=True, text=True).stderr
        wanted = theirs.revision or "a@b"
        check(f"{url} is read as {theirs.revision}, {theirs.path_in_repo}", wanted in said)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--millrace", required=True)
    arguments.add_argument("--server", required=True)
    options = arguments.parse_args()
    if VENV.exists() and pathlib.Path(sys.executable) != VENV:
        os.execv(VENV, [str(VENV), *sys.argv])
    with tempfile.TemporaryDirectory(prefix="millrace-hub-") as name:
        folder = pathlib.Path(name)
        make_files(folder / "hub")
        server = subprocess.Popen([options.server, str(folder / "hub"), "--token", TOKEN, "--page-files", "6"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            os.environ.update(HF_ENDPOINT=server.stdout.readline().strip(), HF_TOKEN=TOKEN, HF_HOME=str(folder / "home"),
                              HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
            try:
                import huggingface_hub  # after the environment, which it reads once
            except ImportError:
                print("not here: huggingface_hub")
                return SKIPPED
            compare(huggingface_hub, options.millrace, folder)
        finally:
            server.stdin.close()
            server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
