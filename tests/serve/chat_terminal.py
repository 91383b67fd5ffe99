"""Uses `millrace chat` as its users do: in a pseudo-terminal, with its keys, and in a pipe.

    python3 chat_terminal.py --millrace PROGRAM

The server's answers are scripted (fake_chat.py). chat_served.py has a real one.
"""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

from fake_chat import CUT, ENDED, FakeChat, Hold

PATIENCE_S = 120
KEY = "0123456789abcdef-the-key"
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[^\[])")
# What the program itself sends: cursor up and right, clear below, dim, red, plain, bracketed paste.
OWN = re.compile(r"\x1b\[(\d+[AC]|J|2m|31m|0m|\?2004[hl])")
ENTER, CTRL_C, CTRL_D, CTRL_W, UP, LEFT, HOME = "\r", "\x03", "\x04", "\x17", "\x1b[A", "\x1b[D", "\x1b[H"


class Chat:
    """`millrace chat` in a pseudo-terminal, until the block ends."""

    def __init__(self, command, env, columns=80):
        self.control, terminal = pty.openpty()
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.terminal, self.before = terminal, termios.tcgetattr(terminal)
        self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.output, self.seen = "", 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.control)

    def read(self, wait):
        if select.select([self.control], [], [], wait)[0]:
            self.output += os.read(self.control, 1 << 16).decode()  # always whole UTF-8: the parts are small

    def wait(self, text):
        """Until the text has come after what the last wait found. Returns what came, with its escape sequences."""
        end = time.monotonic() + PATIENCE_S
        while (at := self.output.find(text, self.seen)) < 0:
            assert time.monotonic() < end, f"{text!r} does not come: {self.output[self.seen:]!r}"
            self.read(0.1)
        before, self.seen = self.seen, at + len(text)
        return self.output[before:self.seen]

    def type(self, keys):
        os.write(self.control, keys.encode())

    def ask(self, text):
        self.wait("> ")
        self.type(text + ENTER)

    def end(self, keys=CTRL_D, status=0):
        self.type(keys)
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        assert self.process.poll() == status, (self.process.poll(), self.output[-300:])
        assert termios.tcgetattr(self.terminal) == self.before, "the terminal is as it was"


def test_talk(millrace, env, fake, folder):
    hold = Hold()
    fake.answers |= {"hello": ["Hello ", hold, "there."], "long": ["the beginning ", Hold(), "the end"]}
    with Chat([millrace, "chat", fake.url], env) as chat:
        chat.wait("tiny at http://127.0.0.1:")
        chat.ask("hello")
        chat.wait("Hello ")  # streamed: the rest is held
        hold.released.set()
        chat.wait("there.\r\n")
        chat.wait("[5 + 2 tokens")
        # Ctrl-C stops the answer, not the program; what was typed meanwhile is given up.
        chat.ask("long")
        chat.wait("the beginning")
        chat.type("typed too early" + CTRL_C)
        chat.wait("[stopped]")
        chat.ask("and on")
        chat.wait("\r\nand on\r\n")
        sent = fake.requests[-1]["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant"] * 2 + ["user"] and "the end" not in sent[3]["content"], sent
        chat.ask("/regenerate")
        chat.wait("\r\nand on\r\n")
        assert fake.requests[-1]["messages"] == sent, "the same question"
        chat.ask("/edit otherwise")
        chat.wait("\r\notherwise\r\n")
        assert fake.requests[-1]["messages"] == sent[:-1] + [{"role": "user", "content": "otherwise"}]
        chat.ask("//not a command")
        chat.wait("\r\n/not a command\r\n")
        chat.wait("> ")
        chat.end()
    assert fake.gone == 1, "the server noticed that the answer was stopped"


def test_settings(millrace, env, fake, folder):
    with Chat([millrace, "chat", fake.url, "--system", "Be short.", "--top-p", "0.9"], env) as chat:
        for command in ("/temperature 0.5", "/seed 7", "/stop END", "/model tiny-lora"):
            chat.ask(command)
        chat.ask("hi")
        chat.wait("\r\nhi\r\n")
        sent = fake.requests[-1]
        assert {name: sent[name] for name in ("temperature", "top_p", "seed", "stop", "model")} == {
            "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "model": "tiny-lora"}, sent
        assert sent["messages"][0] == {"role": "system", "content": "Be short."}
        for wrong, why in (("/temperatur 1", "did you mean"), ("/temperature hot", "it cannot be"), ("/model none", "unknown model"),
                           ("/quit now", "takes no argument"), ("/load /nonexistent", "No such file")):
            chat.ask(wrong)
            chat.wait(why)
        chat.ask("/temperature default")
        chat.ask("/settings")
        shown = chat.wait("stop         END")
        assert "temperature  default" in shown and "seed         7" in shown, shown
        chat.ask("/help")
        chat.wait("/regenerate")
        chat.wait("> ")
        chat.end("/quit" + ENTER)


def test_save_and_load(millrace, env, fake, folder):
    file = folder / "talk.json"
    with Chat([millrace, "chat", fake.url, "--seed", "3"], env) as chat:
        chat.ask("remember")
        chat.wait("\r\nremember\r\n")
        chat.ask(f"/save {file}")
        chat.wait("[saved to")
        chat.wait("> ")
        chat.end()
    assert file.stat().st_mode & 0o777 == 0o600, "for its owner alone"
    saved = file.read_text()
    with Chat([millrace, "chat", fake.url], env) as chat:
        chat.ask("other")
        chat.wait("\r\nother\r\n")
        chat.ask(f"/save {file}")
        chat.wait("exists")
        assert file.read_text() == saved, "nothing is overwritten"
        chat.ask(f"/load {file}")
        chat.wait("> remember\r\nremember\r\n")
        chat.ask("more")
        chat.wait("\r\nmore\r\n")
        assert fake.requests[-1]["seed"] == 3 and len(fake.requests[-1]["messages"]) == 3, fake.requests[-1]
        chat.ask("/save")
        chat.wait("[saved to")
        chat.wait("> ")
        chat.end()
    assert len(json.loads(file.read_text())["conversations"][0]["messages"]) == 4


def test_keys(millrace, env, fake, folder):
    with Chat([millrace, "chat", fake.url], env, columns=20) as chat:
        chat.wait("> ")
        # Editing: the word before the cursor, the beginning, characters of several bytes and columns.
        chat.type("水車 wheel" + CTRL_W + "mü" + "\x7f" + "ill" + LEFT * 3 + "\x7f" + "M" + HOME + "¡" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "¡水車 Mill", fake.requests[-1]["messages"]
        # A line that is longer than the screen is wide, then changed in its first row.
        chat.wait("> ")
        chat.type("0123456789" * 5 + HOME + "a" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "a" + "0123456789" * 5
        # The history, pasted lines and Alt-Enter.
        chat.wait("> ")
        chat.type(UP * 2 + "!" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "¡水車 Mill!"
        chat.wait("> ")
        chat.type("\x1b[200~two\rlines\x1b[201~\x1b\rthree" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "two\nlines\nthree"
        # Ctrl-C empties the line, Ctrl-D ends in an empty line only.
        chat.wait("> ")
        chat.type("nonsense" + LEFT + CTRL_D + CTRL_C + "clean" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "clean"
        chat.wait("> ")
        chat.end()


def test_what_is_pasted_is_sent_as_it_was(millrace, env, fake, folder):
    """Also in a locale without UTF-8, with characters that a terminal would obey, and in more lines than the screen has."""
    text = "\u202eright to left\u2069 \u00fc 👩\u200d🚀\n\ttab " + "a long line " * 400 + "\nlast"
    with Chat([millrace, "chat", fake.url], env | {"LC_ALL": "C"}) as chat:
        chat.ask("earlier")
        chat.wait("[5 + ")
        chat.wait("> ")
        chat.type(f"\x1b[200~{text}\x1b[201~")
        chat.wait("last")
        chat.type(UP)
        chat.wait("earlier")
        chat.type("\x1b[B")
        chat.wait("last")
        assert "\u202e" not in chat.output and "\u2069" not in chat.output, "no character that changes what follows"
        chat.type(ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == text, fake.requests[-1]["messages"][-1]
        chat.wait("> ")
        chat.end()


def test_own_keys(millrace, env, fake, folder):
    """~/.editrc binds keys, as for other programs with libedit; the chat's own keys stay."""
    (folder / ".editrc").write_text("edit off\nbind ^T ed-move-to-beg\nbind ^C ed-insert\n")
    with Chat([millrace, "chat", fake.url], env | {"HOME": str(folder)}) as chat:
        chat.wait("> ")
        chat.type("nonsense\x03" + "ill" + "\x14" + "m" + ENTER)
        chat.wait("[5 + ")
        assert fake.requests[-1]["messages"][-1]["content"] == "mill", fake.requests[-1]["messages"][-1]
        chat.wait("> ")
        chat.end()


def test_control_characters(millrace, env, fake, folder):
    """Whatever the server says: names, errors and answers."""
    evil = "\x1b[31m\x1b]0;title\x07\x1b]52;c;eA==\x1b\\ \u009b2J\u202e\x08\x7f\r over\r\nline"
    fake.models = ["tiny" + evil]
    fake.answers |= {"evil": [evil], "error": 500}
    fake.message = evil
    with Chat([millrace, "chat", fake.url], env) as chat:
        chat.ask("evil")
        chat.wait("line")
        chat.ask("error")
        chat.wait("line")
        for command in ("/model", "/settings", f"/model {'x'}"):
            chat.ask(command)
        chat.ask("hello")
        chat.wait("\r\nhello\r\n")
        chat.wait("> ")
        chat.end()
    rest = OWN.sub("", chat.output)
    assert "\x1b" not in rest and not re.search(r"[\x00-\x07\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", rest), rest
    assert "␛[31m" in chat.output and "\r\nover" not in chat.output
    # In a pipe the text is what the model said.
    piped = subprocess.run([millrace, "chat", fake.url, "--message", "evil"], env=env, capture_output=True, check=True)
    assert piped.stdout.decode() == evil + "\n", piped.stdout


def test_failures(millrace, env, fake, folder):
    hold = Hold()
    fake.answers |= {"full": 429, "cut": ["half an ans", hold, CUT], "none": 400}
    with Chat([millrace, "chat", fake.url], env) as chat:
        chat.ask("full")
        chat.wait("it is broken")
        fake.answers["full"] = ["now"]
        chat.ask("/regenerate")
        chat.wait("\r\nnow\r\n")
        chat.ask("cut")
        chat.wait("half an ans")
        hold.released.set()
        chat.wait("[/regenerate tries again]")
        fake.answers["cut"] = ["whole"]
        chat.ask("/regenerate")
        chat.wait("\r\nwhole\r\n")
        fake.answers["ended"] = ["half", ENDED]
        chat.ask("ended")
        chat.wait("the connection broke before the answer was complete")
        chat.ask("none")
        chat.wait("no chat template")
        chat.wait("/plain on")
        chat.ask("/plain on")
        fake.answers["none"] = ["as text"]
        chat.ask("/regenerate")
        chat.wait("\r\nas text\r\n")
        assert fake.requests[-1]["path"] == "/v1/completions" and fake.requests[-1]["prompt"].endswith("ended\nhalf\nnone")
        fake.answers["away"] = ["still ", Hold()]
        chat.ask("away")
        chat.wait("still ")
        fake.stop()
        chat.wait("[/regenerate tries again]")
        chat.ask("anybody?")
        chat.wait("Failed to connect")
        chat.wait("> ")
        chat.process.send_signal(signal.SIGTERM)
        chat.end("", status=130)


def test_pipe(millrace, env, fake, folder):
    def run(*arguments, **options):
        return subprocess.run([millrace, *arguments], env=env, capture_output=True, text=True, **options)

    fake.answers["long"] = ["the beginning ", Hold()]
    assert run("chat", fake.url, input="from a pipe\n").stdout == "from a pipe\n"
    assert run("chat", fake.url, "--message", "given", stdin=subprocess.DEVNULL).stdout == "given\n"
    answer = json.loads(run("--json", "chat", fake.url, "--message", "as JSON").stdout)
    assert answer["text"] == "as JSON" and answer["model"] == "tiny" and answer["finish_reason"] == "stop", answer
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 1} and answer["total_s"] > 0, answer
    nothing = run("chat", fake.url, stdin=subprocess.DEVNULL)
    assert nothing.returncode == 2 and "there is no message" in nothing.stderr, nothing
    fake.answers["full"] = 429
    full = run("chat", fake.url, "--message", "full")
    assert full.returncode == 1 and full.stdout == "" and "it is broken" in full.stderr, full
    stopped = subprocess.Popen([millrace, "chat", fake.url, "--message", "long"], env=env, stdout=subprocess.PIPE, text=True)
    assert stopped.stdout.read(4) == "the "
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(PATIENCE_S) == 130
    stopped.stdout.close()


def test_key(millrace, env, fake, folder):
    fake.key = KEY
    files = {"right": f"# for the chat\n{KEY}\n", "wrong": "another-key-0123456789\n", "empty": "# nothing\n"}
    for name, content in files.items():
        (folder / name).write_text(content)

    def run(*arguments):
        return subprocess.run([millrace, "chat", fake.url, "--message", "hi", *arguments], env=env, capture_output=True, text=True)

    without = run()
    assert without.returncode == 5 and "wants a key: give --api-key-file" in without.stderr, without
    wrong = run("--api-key-file", str(folder / "wrong"))
    assert wrong.returncode == 5 and "does not know the key" in wrong.stderr and "another-key" not in wrong.stderr, wrong
    assert run("--api-key-file", str(folder / "right")).stdout == "hi\n"
    assert "has no key" in run("--api-key-file", str(folder / "empty")).stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    millrace = str(pathlib.Path(arguments.millrace).resolve())
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "http_proxy", "HTTP_PROXY")}
    env |= {"TERM": "xterm-256color"}
    for name, test in list(globals().items()):
        if not name.startswith("test_") or arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder, FakeChat() as fake:
            test(millrace, env, fake, pathlib.Path(folder))
        print(f"ok {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
