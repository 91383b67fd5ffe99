"""Chats with a real `millrace serve`: in Chromium, and with `millrace chat`, which starts a server for a model by itself.

    python3 chat_served.py --millrace PROGRAM

The model is tiny and talks nonsense (tiny_model.py); at temperature 0 it is the same nonsense everywhere.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from chat_terminal import Chat
from devtools import Browser, find_chromium
from tiny_model import write_model

PATIENCE_S = 120
KEY = "0123456789abcdef"
LAST = "#messages > li:last-child"


class Server:
    """`millrace serve` of a model, until the block ends."""

    def __init__(self, millrace, model, folder, *flags):
        self.port_file = folder / "port"
        self.process = subprocess.Popen([millrace, "serve", str(model), "--listen", "127.0.0.1:0", "--port-file", str(self.port_file),
                                         "--threads", "1", *flags])

    def __enter__(self):
        deadline = time.monotonic() + PATIENCE_S
        while not self.port_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "millrace serve did not start"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{self.port_file.read_text().strip()}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(PATIENCE_S) == 0

    def ask(self, **body):
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def in_browser(millrace, model, folder, talk):
    key_file = folder / "keys"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    with Server(millrace, model, folder, "--api-key-file", str(key_file)) as server, Browser(folder) as browser:
        page = browser.open(server.url)
        page.wait("document.querySelector('#key-dialog').open")
        page.type(KEY)
        page.press("Enter")
        page.wait("document.querySelectorAll('#model option').length === 1")
        assert page.value("document.querySelector('#model').value") == model.name
        page.click("#settings")
        page.click("#system")
        page.type("Be short.")
        for name, value in (("temperature", "0"), ("max_tokens", "40")):
            page.click(f"#{name}")
            page.type(value)
        page.click("#settings-save")
        page.click("#prompt")
        page.type("What is a mill?")
        page.click("#send")
        page.wait_text(f"{LAST} .figures", "tokens/s")
        stored = page.value("JSON.parse(localStorage.getItem(Object.keys(localStorage).find((key) => key.includes('conversation'))))")
        answer = stored["messages"][-1]
        wanted = server.ask(temperature=0, max_tokens=40, messages=[
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a mill?"}])
        assert answer["content"] == wanted["choices"][0]["message"]["content"] != "", (answer, wanted)
        assert answer["usage"] == {"prompt": wanted["usage"]["prompt_tokens"], "completion": wanted["usage"]["completion_tokens"]}
        assert answer["finish"] == wanted["choices"][0]["finish_reason"], (answer, wanted)
        # Sampling and stopping texts reach the server; an impossible question is refused in its words.
        page.click("#settings")
        page.value("document.querySelector('#max_tokens').select()")
        page.type("4000")
        page.click("#settings-save")
        page.click("button", "Regenerate the answer")
        page.wait_text(LAST, "context")
        assert page.text(f"{LAST} .problem"), "the server's own words"
        page.click("#settings")
        page.value("document.querySelector('#max_tokens').select()")
        page.type("3")
        page.click("#top_k")
        page.type("5")
        page.click("#min_p")
        page.type("0.1")
        page.click("#settings-save")
        page.click("button", "Try again")
        page.wait_text(f"{LAST} .figures", " + 3 tokens")
        # Plain text.
        page.click("#settings")
        page.value("document.querySelector('#form').value = 'text'")
        page.click("#settings-save")
        page.click("button", "Regenerate the answer")
        page.wait_text(f"{LAST} .figures", " + 3 tokens")
        # What was said in the terminal goes on here.
        page.call("Page.setInterceptFileChooserDialog", enabled=True)
        page.click("#import")
        node = page.call("Runtime.evaluate", expression="document.querySelector('#import-file')")["result"]["objectId"]
        page.call("DOM.setFileInputFiles", files=[str(talk)], objectId=node)
        page.wait("document.querySelectorAll('#conversations li').length === 2")
        said = json.loads(talk.read_text())["conversations"][0]
        shown = page.value("""Object.keys(localStorage).filter((key) => key.includes('conversation'))
            .map((key) => JSON.parse(localStorage.getItem(key)))""")
        assert said["messages"] in [one["messages"] for one in shown], (said, shown)
        page.click("button", "Regenerate the answer")
        page.wait_text(f"{LAST} .figures", " + 12 tokens")
        # The server ends; nobody answers.
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE_S)
        page.click("button", "Regenerate the answer")
        page.wait_text(LAST, "the server cannot be reached")
        page.problems = [one for one in page.problems if "Failed to load resource" not in one]
        page.close()


def in_terminal(millrace, model, folder, talk):
    env = os.environ | {"TERM": "xterm-256color", "TMPDIR": str(folder)}
    asked = [millrace, "--json", "chat", str(model), "--message", "What is a mill?", "--temperature", "0", "--max-tokens", "12"]
    answers = []
    for _ in range(2):
        done = subprocess.run([*asked, "--", "--threads", "1"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done
        answers.append(json.loads(done.stdout))
    assert answers[0]["text"] == answers[1]["text"] and answers[0]["usage"]["completion_tokens"] == 12, answers
    assert not list(folder.iterdir()), "nothing is left of the servers"
    with Chat([millrace, "chat", str(model), "--temperature", "0", "--max-tokens", "12", "--", "--threads", "1"], env) as chat:
        chat.wait("loading ")
        chat.ask("What is a mill?")
        chat.wait(" + 12 tokens")
        chat.ask(f"/save {talk}")
        chat.wait("[saved to")
        chat.wait("> ")
        servers = children_of(chat.process.pid)
        command = pathlib.Path(f"/proc/{servers[0]}/cmdline").read_text().split("\0")
        assert len(servers) == 1 and command[0].endswith("millrace-serve") and "--no-page" in command, command
        key = (folder / command[command.index("--api-key-file") + 1]).read_text()
        assert key and key not in "\0".join(command), "the key is in a file only"
        chat.end()
        assert not pathlib.Path(f"/proc/{servers[0]}").exists(), "the server has ended with the chat"
    assert not list(folder.iterdir()), "nothing is left of the servers"
    # A chat that is killed takes its server along.
    with Chat([millrace, "chat", str(model), "--", "--threads", "1"], env) as chat:
        chat.wait("> ")
        server = children_of(chat.process.pid)[0]
        chat.process.kill()
        deadline = time.monotonic() + PATIENCE_S
        while runs(server):
            assert time.monotonic() < deadline, "the server runs on"
    missing = subprocess.run([millrace, "chat", str(folder / "nothing"), "--message", "x"], env=env, capture_output=True, text=True)
    assert missing.returncode == 4 and "the model's server ended" in missing.stderr and "nothing" in missing.stderr, missing
    wrong = subprocess.run([millrace, "chat", str(model), "--message", "x", "--", "--precison", "f32"], env=env, capture_output=True,
                           text=True)
    assert wrong.returncode == 2 and "--precison" in wrong.stderr, wrong


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    millrace = str(pathlib.Path(parser.parse_args().millrace).resolve())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        model = folder / "tiny"
        write_model(model)
        (folder / "terminal").mkdir()
        in_terminal(millrace, model, folder / "terminal", folder / "talk.json")
        print("ok in a terminal", flush=True)
        if find_chromium() is None:
            print("no Chromium here: tests/install-peers FOLDER debian")
            return 77
        (folder / "browser").mkdir()
        in_browser(millrace, model, folder / "browser", folder / "talk.json")
        print("ok in a browser", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
