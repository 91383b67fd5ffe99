"""Drives headless Chromium over the DevTools protocol, through a pipe: real clicks and keys, screenshots.

The protocol: https://chromedevtools.github.io/devtools-protocol/. A message is JSON that ends with a zero byte; Chromium reads
descriptor 3 and writes descriptor 4 (--remote-debugging-pipe).
"""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE_S = 120
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "ArrowUp": (38, ""), "Home": (36, ""),
        "End": (35, ""), " ": (32, " ")}
SHIFT = 8


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A Chromium with a profile of its own, until the block ends."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.sent = 0
        self.buffer = b""
        self.answers, self.pages = {}, {}

    def __enter__(self):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}/profile", "--no-first-run",
                 "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--force-device-scale-factor=1"]
        # Chromium makes a socket there. Its path has at most 107 bytes, so a test's own folder may be too deep.
        self.sockets = tempfile.mkdtemp(prefix="millrace-chromium-", dir="/tmp")
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's sandbox refuses to run as root
        log = open(self.folder / "chromium.log", "wb")

        def descriptors():
            # Through high numbers: one of the pipe's ends may be 3 or 4 itself.
            os.dup2(to_browser, 100)
            os.dup2(from_browser, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.process = subprocess.Popen([find_chromium(), *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        preexec_fn=descriptors, close_fds=False, start_new_session=True,
                                        env={**os.environ, "HOME": str(self.folder), "TMPDIR": self.sockets})
        log.close()
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self.process.kill()
        self.process.wait(PATIENCE_S)
        shutil.rmtree(self.sockets, ignore_errors=True)
        os.close(self.write_end)
        os.close(self.read_end)

    def call(self, method, session=None, **params):
        self.sent += 1
        number = self.sent
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while number not in self.answers:
            self.read(end, method)
        answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def read(self, end, what):
        """Takes what has come, or waits for something until `end`."""
        ready = select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]
        assert ready, f"no answer to {what} within {PATIENCE_S} s"
        part = os.read(self.read_end, 1 << 20)
        assert part, "Chromium has ended: " + (self.folder / "chromium.log").read_text(errors="replace")[-2000:]
        *messages, self.buffer = (self.buffer + part).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].event(message["method"], message["params"])

    def open(self, url, width=1280, height=800, touch=False, context=None):
        """A new tab, with a storage of its own unless `context` is that of another tab."""
        context = context or self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.resize(width, height, touch)
        page.visit(url)
        return page


class Page:
    """A tab. `problems` are what scripts threw and what the browser refused; `dialogs` are alerts."""

    def __init__(self, browser, session, context):
        self.browser, self.session, self.context = browser, session, context
        self.problems, self.dialogs, self.requests = [], [], []

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["source"] in ("security", "violation", "javascript", "other"):
            self.problems.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def resize(self, width, height, touch=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def media(self, **features):
        """prefers_color_scheme="dark" and the like."""
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def visit(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, expression, what=""):
        end = time.monotonic() + PATIENCE_S
        while not self.value(f"Boolean({expression})"):
            if time.monotonic() > end:
                shown = self.value("document.body.innerText")
                raise AssertionError(f"not within {PATIENCE_S} s: {what or expression}\nproblems: {self.problems}\n{shown}")

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def wait_text(self, selector, text):
        self.wait(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})",
                  f"{text!r} in {selector}")

    def click(self, selector, name=None):
        """Clicks the middle of the last element that matches, has this accessible name (or text), and can be seen."""
        find = f"""(() => {{
          const name = {json.dumps(name)};
          const shown = [...document.querySelectorAll({json.dumps(selector)})].filter((one) => one.checkVisibility({{visibilityProperty: true}}) &&
              (name === null || (one.ariaLabel ?? one.textContent.trim()) === name));
          const found = shown.at(-1);
          if (!found) return null;
          found.scrollIntoView({{block: 'nearest'}});
          const box = found.getBoundingClientRect();
          const x = box.x + box.width / 2, y = box.y + box.height / 2;
          const hit = document.elementFromPoint(x, y);
          return hit && (found.contains(hit) || hit.contains(found)) ? {{x, y}} : null;
        }})()"""
        self.wait(f"{find} !== null", f"{selector} {name or ''} can be clicked")
        at = self.value(find)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def press(self, key, modifiers=0):
        code, text = KEYS[key]
        params = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **params, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **params)

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        """Closes the tab, and others of its storage, which is forgotten. Nothing may have gone wrong in it."""
        self.value("1")  # events that are under way come before the answer
        self.browser.pages = {session: page for session, page in self.browser.pages.items() if page.context != self.context}
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        assert not self.problems and not self.dialogs, (self.problems, self.dialogs)
