#!/usr/bin/env python3
"""Serves models in SageMaker's archives (model.tar.gz) and compares the answers with transformers'.

    model_archives.py --millrace build/release/bin/millrace

The archives are made as the toolkits of SageMaker and users make them: with tar, safetensors or torch.save, in a folder or not.

Exit status: 0 all agree, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import io
import pathlib
import subprocess
import tarfile
import tempfile

import chat_clients  # leaves with 77 if there are no peers
import torch


def pack(archive, entries):
    """Entries: names in the archive to files, or to texts."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in entries.items():
            if isinstance(content, pathlib.Path):
                tar.add(content, name)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def check_served(millrace, archive, folder, model, tokenizer):
    with chat_clients.Server(millrace, archive, folder) as server:
        chat_clients.check_conversations(server.client(), model, tokenizer, rounds=2)
    print(f"{archive.name}: answers as transformers'")


def check_refused(millrace, archive, *says):
    made = subprocess.run([millrace, "serve", str(archive), "--listen", "127.0.0.1:0", "--device", "cpu"], capture_output=True, text=True,
                          timeout=120)
    assert made.returncode != 0 and all(text in made.stderr for text in says), (made.returncode, made.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    tokenizer = chat_clients.make_tokenizer()
    with tempfile.TemporaryDirectory(prefix="millrace-archive-") as work:
        folder = pathlib.Path(work)
        model = chat_clients.make_model("gptj", len(tokenizer))
        tokenizer.save_pretrained(folder / "gptj")
        model.save_pretrained(folder / "gptj")
        files = {file.name: file for file in sorted((folder / "gptj").iterdir())}
        pack(folder / "safetensors.tar.gz", {**files, "code/inference.py": b"raise SystemExit('this must not run')"})
        check_served(arguments.millrace, folder / "safetensors.tar.gz", folder, model, tokenizer)

        small = {f"./opt/gpt-j/{name}": file for name, file in files.items() if not name.endswith(".safetensors")}
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        pack(folder / "pickle.tar.gz", {**small, "./opt/gpt-j/pytorch_model.bin": folder / "pytorch_model.bin"})
        check_served(arguments.millrace, folder / "pickle.tar.gz", folder, model, tokenizer)

        torch.save(model, folder / "gptj.pt")  # a module: objects of transformers' classes
        pack(folder / "module.tar.gz", {**small, "./opt/gpt-j/gptj.pt": folder / "gptj.pt"})
        check_refused(arguments.millrace, folder / "module.tar.gz", "gptj.pt", "GPTJ")
        pack(folder / "empty.tar.gz", {"readme.txt": b"nothing"})
        check_refused(arguments.millrace, folder / "empty.tar.gz", "no config.json")
    print("modules and archives without a model are refused by name")


main()
