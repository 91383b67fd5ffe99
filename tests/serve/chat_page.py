"""Uses the chat page as its users do: clicks, keys and looks in headless Chromium.

    python3 chat_page.py --page-server PROGRAM [--screenshots FOLDER] [--only NAME]

The server's answers are scripted (fake_chat.py); the page and its headers are those of `millrace serve`. Exit status 77: there is
no Chromium.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

from devtools import SHIFT, Browser, find_chromium
from fake_chat import CUT, ENDED, FakeChat, Hold

DESKTOP, PHONE = (1280, 800), (390, 844)
LAST = "#messages > li:last-child"

SAMPLE = """## A mill race

A *mill race* carries **water** to the wheel. It has:

1. a sluice, which `opens` and closes
2. a flume
   - of wood
   - of stone

| part | metres |
|------|-------:|
| race | 120 |
| wheel | 4.5 |

> Water that has passed turns no mill.

```python
def power(flow, head):
    return 9.81 * flow * head  # kW
```

More at https://example.org/mills."""

# What a model may say to run a script or to load something. Each would set the title or open a dialog.
ATTACKS = [
    '<img src=x onerror="document.title=\'ran\'">',
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt&colon;alert(1)) [two](\tjavascript:alert(1)) [three](<java\nscript:alert(1)>)",
    "[data](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==) [vb](vbscript:msgbox) [file](file:///etc/passwd)",
    "![pixel](http://127.0.0.1:1/pixel.png) ![x](javascript:alert(1))",
    "<javascript:alert(1)> <a href='javascript:alert(1)'>a</a> <svg onload=alert(1)>",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    '```"><img src=x onerror=alert(1)>\ncode\n```',
    "`<img src=x onerror=alert(1)>` **<b onclick=alert(1)>bold</b>**",
    '[quote](https://example.org/" onmouseover="alert(1))',
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <iframe srcdoc='<script>parent.alert(1)</script>'> | [x](javascript:alert(1)) |",
    "<style>body{display:none}</style><meta http-equiv=refresh content='0;url=http://127.0.0.1:1/'>",
    "</script><script>alert(1)</script> {{style}} {{script}}",
    "[" * 3000 + "](" * 3000,
    "*_" * 5000 + "> " * 5000,
    "\n".join("  " * depth + "- deep" for depth in range(400)),
    "> " * 2000 + "quoted",
]

# What a text looks like, as elements without their attributes; links keep their address.
MARKDOWN = {
    "plain *em* **strong** ***both*** ~~gone~~ `code`": "<p>plain <em>em</em> <strong>strong</strong> <em><strong>both</strong></em> <del>gone</del> <code>code</code></p>",
    "snake_case_name and 2 * 3 * 4 and __init__.py": "<p>snake_case_name and 2 * 3 * 4 and <strong>init</strong>.py</p>",
    "**bold *and em* here** *a **b** c*": "<p><strong>bold <em>and em</em> here</strong> <em>a <strong>b</strong> c</em></p>",
    "\\*not em\\* \\`x\\` **open": "<p>*not em* `x` **open</p>",
    "``a ` b`` `unclosed": "<p><code>a ` b</code> `unclosed</p>",
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "# One #\n### Three\n####### seven": "<h4>One</h4><h6>Three</h6><p>####### seven</p>",
    "- a\n- b\n  more\n\n  second\n- [x] done\n- [ ] open": "<ul><li>a</li><li>b<br>more<p>second</p></li><li>☑ done</li><li>☐ open</li></ul>",
    "3. three\n4. four\n\n* * *\n* star": "<ol>three four</ol><hr><ul><li>star</li></ul>",
    "> quoted\n> > deeper\n\nafter": "<blockquote><p>quoted</p><blockquote><p>deeper</p></blockquote></blockquote><p>after</p>",
    "~~~\n```\n~~~\n    indented\n": "<pre><code>```</code></pre><pre><code>indented</code></pre>",
    "```js\nlet a = '<b>';\n": "<pre><code>let a = '&lt;b&gt;';</code></pre>",
    "| a | b |\n|:-:|---|\n| `x` | y \\| z |\n| only |": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x</code></td><td>y | z</td></tr>"
                                                         "<tr><td>only</td><td></td></tr></tbody></table>",
    "[a](https://a.org/x_(y) 'title') <https://b.org> see https://c.org/d?e=f, or (https://g.org)": '<p><a href="https://a.org/x_(y)">a</a> <a href="https://b.org/">https://b.org</a> '
                                                                                         'see <a href="https://c.org/d?e=f">https://c.org/d?e=f</a>, or (<a href="https://g.org/">https://g.org</a>)</p>',
    "[**b** [x](https://a.org)](https://b.org) [no](/relative) [no](ftp://a.org)": '<p>[<strong>b</strong> <a href="https://a.org/">x</a>](<a href="https://b.org/">https://b.org</a>) '
                                                                          "[no](/relative) [no](ftp://a.org)</p>",
    "<b>not bold</b> &amp; & <!-- c -->": "<p>&lt;b&gt;not bold&lt;/b&gt; &amp;amp; &amp; &lt;!-- c --&gt;</p>",
}


def ask(page, text):
    page.click("#prompt")
    page.type(text)
    page.click("#send")


def wait_answer(page, text=""):
    page.wait_text(LAST, text)
    page.wait(f"document.querySelector('{LAST}').ariaBusy === 'false'", "the answer is complete")


def test_streaming(browser, fake, shots):
    hold = Hold()
    fake.answers["What is a mill race?"] = ["## A mill", hold, SAMPLE.removeprefix("## A mill")]
    page = browser.open(fake.url, *DESKTOP)
    page.wait("document.querySelectorAll('#model option').length === 2", "the models")
    labels = page.value("[...document.querySelectorAll('#model option')].map((option) => option.textContent).join()")
    assert labels == "tiny,tiny-lora (adapter of tiny)", labels
    ask(page, "What is a mill race?")
    page.wait_text(LAST, "A mill")
    assert page.value(f"document.querySelector('{LAST}').ariaBusy") == "true", "it comes in pieces"
    hold.released.set()
    wait_answer(page, "example.org")
    shown = page.value(f"""(() => {{
      const one = document.querySelector('{LAST} .markdown');
      return {{tags: ['em', 'strong', 'ol > li > ul > li', 'table tbody tr', 'blockquote', 'pre code', 'h5', 'h4', 'code', 'a'].map((s) => one.querySelectorAll(s).length),
        code: one.querySelector('pre code').textContent, link: [...one.querySelectorAll('a')].map((a) => [a.href, a.rel, a.target])}};
    }})()""")
    assert shown["tags"] == [1, 1, 2, 2, 1, 1, 1, 0, 2, 1], shown
    assert shown["code"] == "def power(flow, head):\n    return 9.81 * flow * head  # kW", shown
    assert shown["link"] == [["https://example.org/mills", "noopener noreferrer", "_blank"]], shown
    figures = page.text(f"{LAST} .figures")
    assert "5 + " in figures and "tokens/s" in figures and "first after" in figures, figures
    sent = fake.requests[-1]
    assert sent["path"] == "/v1/chat/completions" and sent["stream"] and sent["model"] == "tiny", sent
    assert sent["messages"] == [{"role": "user", "content": "What is a mill race?"}], sent
    page.wait_text("#live", "The answer is complete")
    assert page.value("document.title") == "What is a mill race? – Millrace"
    shots(page, "desktop")
    # What was said stays, and is sent with the next message.
    page.visit(fake.url)
    wait_answer(page, "A mill race")
    ask(page, "And then?")
    wait_answer(page, "And then?")
    assert [one["role"] for one in fake.requests[-1]["messages"]] == ["user", "assistant", "user"]
    page.close()


def test_markdown(browser, fake, shots):
    page = browser.open(fake.url, *DESKTOP)
    for number, (source, shown) in enumerate(MARKDOWN.items()):
        fake.answers[f"case {number}"] = [source]
        page.click("#new-chat")
        ask(page, f"case {number}")
        wait_answer(page)
        # The same text in one piece: drawing piece by piece ends with the same elements.
        found = page.value(f"""(() => {{
          const copy = document.querySelector('{LAST} .markdown').cloneNode(true);
          for (const one of copy.querySelectorAll('.bar')) one.remove();
          for (const one of copy.querySelectorAll('div')) one.replaceWith(...one.childNodes);
          for (const one of copy.querySelectorAll('ol li')) one.replaceWith(...one.childNodes, one.nextSibling ? ' ' : '');
          for (const one of copy.querySelectorAll('*')) for (const a of [...one.attributes]) if (a.name !== 'href') one.removeAttribute(a.name);
          return copy.innerHTML;
        }})()""")
        assert found == shown, f"{source!r}:\n{found}\n{shown}"
    page.close()


def test_copying(browser, fake, shots):
    fake.answers["sample"] = [SAMPLE]
    page = browser.open(fake.url, *DESKTOP)
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], browserContextId=page.context)
    ask(page, "sample")
    wait_answer(page, "example.org")
    code = "def power(flow, head):\n    return 9.81 * flow * head  # kW"
    for button, text in (("Copy the code", code), ("Copy the answer", SAMPLE), ("Copy your message", "sample")):
        page.click("button", button)
        page.wait_text("#live", "Copied")
        copied = page.value("navigator.clipboard.readText()")
        assert copied == text, (button, copied)
        page.value("document.querySelector('#live').textContent = ''")
    assert page.value("navigator.clipboard.writeText('').then(() => 'written')") == "written", "the interface was there"
    # Without the clipboard's interface, as over plain HTTP on a network.
    page.value("navigator.clipboard.writeText = () => Promise.reject(new Error('not here'))")
    page.click("button", "Copy the code")
    page.wait_text("#live", "Copied")
    assert page.value("navigator.clipboard.readText()") == code
    page.close()


def test_stop(browser, fake, shots):
    fake.answers["long"] = ["the beginning ", Hold(), "the end"]
    page = browser.open(fake.url, *DESKTOP)
    for how in ("button", "key"):
        ask(page, "long")
        page.wait_text(LAST, "the beginning")
        gone = fake.gone
        if how == "button":
            page.click("#stop")
        else:
            page.press("Escape")
        wait_answer(page, "stopped")
        end_of(lambda: fake.gone > gone, page, "the server notices that the client left")
        assert "the end" not in page.text(LAST) and not page.value("document.querySelector('#send').hidden")
        assert page.value("document.activeElement.id") == "prompt", "one can go on typing"
    page.close()


def test_regenerate_and_edit(browser, fake, shots):
    fake.answers["hello"] = [["first answer"], ["second answer"]]
    page = browser.open(fake.url, *DESKTOP)
    ask(page, "hello")
    wait_answer(page, "first answer")
    page.click("button", "Regenerate the answer")
    wait_answer(page, "second answer")
    assert fake.requests[-1]["messages"] == [{"role": "user", "content": "hello"}], "the first answer is not sent"
    assert "2 of 2" in page.text(LAST)
    page.click("button", "Previous version")
    wait_answer(page, "first answer")
    ask(page, "go on")
    wait_answer(page, "go on")
    assert [one["content"] for one in fake.requests[-1]["messages"]] == ["hello", "first answer", "go on"]
    # Another version of the first message: what followed the old one is kept.
    page.click("#messages > li:first-child button", "Edit your message")
    page.wait("document.activeElement.tagName === 'TEXTAREA'")
    page.type(" again")
    page.press("Enter")
    wait_answer(page, "hello again")
    assert fake.requests[-1]["messages"] == [{"role": "user", "content": "hello again"}]
    assert page.value("document.querySelectorAll('#messages > li').length") == 2
    page.click("#messages > li:first-child button", "Previous version")
    page.wait("document.querySelectorAll('#messages > li').length === 4", "the old branch to its end")
    # Leaving an edit changes nothing.
    page.click("#messages > li:first-child button", "Edit your message")
    page.type("x")
    page.press("Escape")
    assert page.text("#messages > li:first-child .text") == "hello" and len(fake.requests) == 4
    page.close()


def test_attacks(browser, fake, shots):
    """Nothing of what a model, a name of a model or an imported file says runs or loads."""
    fake.models = ["<img src=x onerror=alert(1)>"]
    page = browser.open(fake.url, *DESKTOP)
    page.wait("document.querySelectorAll('#model option').length === 1")
    for number, attack in enumerate(ATTACKS):
        fake.answers[f"attack {number}"] = [attack]
        ask(page, f"attack {number}")
        wait_answer(page)
    page.wait(f"document.querySelectorAll('#messages > li').length === {2 * len(ATTACKS)}")
    ask(page, ATTACKS[0])
    wait_answer(page, "onerror")
    found = page.value("""(() => {
      const all = [...document.querySelectorAll('#app *')];
      return {
        tags: [...new Set(all.map((one) => one.tagName))],
        links: [...document.querySelectorAll('a[href]:not(.skip)')].map((a) => a.href),
        handlers: all.filter((one) => [...one.attributes].some((a) => a.name.startsWith('on') || a.name === 'srcdoc')).length,
      };
    })()""")
    assert not {"IMG", "SCRIPT", "IFRAME", "SVG", "STYLE", "META", "OBJECT", "EMBED", "BASE", "B"} & set(found["tags"]), found["tags"]
    assert found["links"] and all(link.startswith(("http://", "https://")) for link in found["links"]), found["links"]
    assert found["handlers"] == 0, found
    assert page.value("document.title").endswith("– Millrace"), "no script set it"
    # Every link is pressed: the page stays where it is.
    for at in range(page.value("document.querySelectorAll('.markdown a').length")):
        page.value(f"document.querySelectorAll('.markdown a')[{at}].click()")
    assert page.value("location.href") == f"{fake.url}/"
    # What the browser itself would refuse, if a mistake brought it here.
    assert page.value("""(() => { try { document.querySelector('#empty').innerHTML = '<b>x</b>'; } catch (e) { return e.name; } })()""") \
        == "TypeError", "Trusted Types"
    page.value("""document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:1/pixel.png'}))""")
    page.value("""fetch('http://127.0.0.1:1/').catch((e) => e.name)""")
    page.value("1")
    assert sum("Content Security Policy" in one for one in page.problems) >= 2, page.problems
    refused, page.problems = page.problems, []
    assert all("Content Security Policy" in one or "TrustedHTML" in one for one in refused), refused
    own = ("data:image/svg", f"{fake.url}/")
    assert not [url for url in page.requests if not url.startswith(own) and "127.0.0.1:1/" not in url and "example.org" not in url], page.requests
    shots(page, "attacks")
    page.close()


def test_key(browser, fake, shots):
    fake.key = "the-right-key-0123456789"
    page = browser.open(fake.url, *DESKTOP)
    page.wait("document.querySelector('#key-dialog').open", "it asks for the key")
    page.type("a-wrong-key")
    page.press("Enter")
    page.wait_text("#key-error", "does not know the key")
    page.type(fake.key)
    shots(page, "key")
    page.click("#key-save")
    page.wait("document.querySelectorAll('#model option').length === 2", "the models")
    ask(page, "hello")
    wait_answer(page, "hello")
    stored = page.value("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    assert fake.key not in stored[0] and fake.key in stored[1], "for this tab only"
    # The server has another key: the answer is refused, and asked for again with the new one.
    fake.key = "a-newer-key-0123456789"
    ask(page, "still there?")
    page.wait("document.querySelector('#key-dialog').open")
    page.press("Escape")
    page.wait_text(LAST, "wants a key")
    page.click("button", "Enter an API key")
    page.wait("document.querySelector('#key-dialog').open")
    page.type(fake.key)
    page.press("Enter")
    wait_answer(page, "still there?")
    assert page.value("document.querySelectorAll('#messages > li').length") == 4
    page.click("#settings")
    page.click("#forget-key")
    assert page.value("sessionStorage.length") == 0
    # Chromium itself tells of each 401.
    page.problems = [one for one in page.problems if "401" not in one]
    page.close()


def test_errors(browser, fake, shots):
    hold = Hold()
    fake.answers |= {"overloaded": 429, "broken": 500, "no template": 400, "cut": ["half an ans", hold, CUT]}
    page = browser.open(fake.url, *DESKTOP)
    ask(page, "overloaded")
    page.wait_text(LAST, "Try again in 7 s")
    fake.answers["overloaded"] = ["now there is room"]
    page.click("button", "Try again")
    wait_answer(page, "now there is room")
    assert page.value("document.querySelectorAll('#messages > li').length") == 2, "the failure has gone"
    ask(page, "broken")
    page.wait_text(LAST, "it is broken")
    ask(page, "cut")
    page.wait_text(LAST, "half an ans")
    hold.released.set()
    page.wait_text(LAST, "the connection broke before the answer was complete")
    assert "half an ans" in page.text(LAST), "what came is kept"
    assert [one["role"] for one in fake.requests[-1]["messages"]] == ["user", "assistant", "user"], "roles in turn"
    shots(page, "cut")
    fake.answers["cut"] = ["the whole answer"]
    page.click("button", "Try again")
    wait_answer(page, "the whole answer")
    fake.answers["ended"] = ["half an ans", ENDED]
    ask(page, "ended")
    page.wait_text(LAST, "the connection broke before the answer was complete")
    page.click("#new-chat")
    ask(page, "no template")
    page.wait_text(LAST, "no chat template")
    fake.answers["no template"] = ["plain text"]
    page.click("button", "Send as plain text")
    wait_answer(page, "plain text")
    assert fake.requests[-1]["path"] == "/v1/completions" and fake.requests[-1]["prompt"] == "no template"
    assert fake.requests[-1]["max_tokens"] == 128, "half of the model's context"
    page.problems = [one for one in page.problems if "Failed to load resource" not in one]
    # The server ends in the middle of an answer, and stays away.
    fake.answers["end"] = ["the last wor", Hold(), "d"]
    ask(page, "end")
    page.wait_text(LAST, "the last wor")
    fake.stop()
    page.wait_text(LAST, "the connection broke")
    ask(page, "anybody?")
    page.wait_text(LAST, "the server cannot be reached")
    shots(page, "away")
    page.problems = [one for one in page.problems if "ERR_CONNECTION" not in one]
    page.close()


def test_conversations(browser, fake, shots):
    page = browser.open(fake.url, *DESKTOP)
    hold = Hold()
    fake.answers["slow"] = ["it ", hold, "is done"]
    ask(page, "slow")
    page.wait_text(LAST, "it")
    # Another conversation while the first one is answered.
    page.click("#new-chat")
    ask(page, "second")
    wait_answer(page, "second")
    hold.released.set()
    page.click("#conversations button", "slow")
    wait_answer(page, "it is done")
    page.click("#conversations button", "Rename slow")
    page.type("Patience & <b>care</b>")
    page.press("Enter")
    page.wait_text("#conversations", "Patience & <b>care</b>")
    page.visit(fake.url)
    page.wait_text("#title", "second" if "second" in page.text("#title") else "Patience")
    # Settings: of this conversation, and of new ones.
    page.click("#settings")
    page.click("#system")
    page.type("You are a miller.")
    for name, value in {"temperature": "0.7", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "max_tokens": "99", "seed": "7"}.items():
        page.click(f"#{name}")
        page.type(value)
    page.click("#stop-texts")
    page.type("END\nSTOP")
    shots(page, "settings")
    page.value("document.querySelector('#temperature').select()")
    page.type("99")
    page.click("#settings-save")
    page.wait_text("#settings-error", "Temperature: ")
    page.value("document.querySelector('#temperature').select()")
    page.type("0.7")
    page.click("#settings-save")
    page.click("#new-chat")
    page.value("document.querySelector('#model').focus()")
    page.press("ArrowDown")
    page.wait("document.querySelector('#model').value === 'tiny-lora'")
    ask(page, "with settings")
    wait_answer(page, "with settings")
    sent = fake.requests[-1]
    assert sent["messages"][0] == {"role": "system", "content": "You are a miller."}, sent
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop", "model")} == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 99, "seed": 7, "stop": ["END", "STOP"],
        "model": "tiny-lora"}, sent
    page.click("#conversations button", "Delete second")
    page.click("#delete-cancel")
    page.click("#conversations button", "Delete second")
    page.click("#delete-confirm")
    page.wait("!document.querySelector('#conversations').innerText.includes('second')")
    assert page.value("Object.keys(localStorage).filter((key) => key.includes('conversation')).length") == 2
    page.close()


def test_export_and_import(browser, fake, shots):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = browser.open(fake.url, *DESKTOP)
        browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=name, browserContextId=page.context)
        ask(page, "Keep: this/that")
        wait_answer(page, "Keep")
        for kind, end in (("markdown", "md"), ("json", "json")):
            page.click("#export")
            page.click(f"#export-{kind}")
            end_of((folder / f"Keep-this-that.{end}").exists, page, f"a file of {kind}")
        assert (folder / "Keep-this-that.md").read_text() == "# Keep: this/that\n\n## You\n\nKeep: this/that\n\n## tiny\n\nKeep: this/that\n"
        exported = json.loads((folder / "Keep-this-that.json").read_text())
        assert exported["format"] == "millrace-chat" and len(exported["conversations"]) == 1
        bad = dict(exported, conversations=[dict(exported["conversations"][0], messages=[{"id": "a", "parent": "a", "role": "user", "content": "x"}])])
        evil = dict(exported, conversations=[dict(exported["conversations"][0], title=ATTACKS[0], __proto__={"x": 1}, messages=[
            {"id": "1", "parent": "", "role": "assistant", "content": ATTACKS[0], "problem": ATTACKS[0], "model": ATTACKS[0]}])])
        for file, content in (("broken", "{"), ("other", "{}"), ("later", json.dumps(dict(exported, version=2))), ("bad", json.dumps(bad)),
                              ("evil", json.dumps(evil))):
            (folder / file).write_text(content)
        page.close()
        page = browser.open(fake.url, *DESKTOP)

        def choose(file):
            page.click("#import")
            node = page.call("Runtime.evaluate", expression="document.querySelector('#import-file')")["result"]["objectId"]
            page.call("DOM.setFileInputFiles", files=[str(folder / file)], objectId=node)

        page.call("Page.setInterceptFileChooserDialog", enabled=True)
        for file, why in (("broken", "no JSON"), ("other", "no export"), ("later", "version is 2"), ("bad", "no known form")):
            choose(file)
            page.wait_text("#notice-text", why)
            page.click("#notice-close")
        assert page.value("document.querySelectorAll('#conversations li').length") == 0, "nothing was added"
        choose("Keep-this-that.json")
        page.wait_text("#title", "Keep: this/that")
        wait_answer(page, "Keep")
        choose("Keep-this-that.json")
        page.wait("document.querySelectorAll('#conversations li').length === 2", "a second copy, not over the first")
        choose("evil")
        page.wait_text(LAST, "onerror")
        assert page.value("document.images.length") == 0
        page.close()


def test_full_storage(browser, fake, shots):
    page = browser.open(fake.url, *DESKTOP)
    page.value("""(() => {
      let part = 'x'.repeat(1 << 20);
      for (let n = 0; part.length > 0; ) {
        try { localStorage.setItem(`other.${n}`, part); ++n; } catch { part = part.slice(0, part.length >> 1); }
      }
    })()""")
    ask(page, "is there room?")
    wait_answer(page, "is there room?")
    page.wait_text("#notice-text", "no room for more")
    ask(page, "go on")
    wait_answer(page, "go on")
    assert len(fake.requests[-1]["messages"]) == 3, "the conversation goes on without storage"
    page.value("localStorage.clear()")
    ask(page, "and now?")
    wait_answer(page, "and now?")
    page.visit(fake.url)
    wait_answer(page, "and now?")
    page.close()


def test_keyboard_only(browser, fake, shots):
    fake.answers["long"] = ["the beginning ", Hold()]
    page = browser.open(fake.url, *DESKTOP)
    page.wait("document.querySelectorAll('#model option').length === 2")
    assert page.value("document.activeElement.id") == "prompt", "one can type at once"
    page.type("two")
    page.press("Enter", SHIFT)
    page.type("lines")
    page.press("Enter")
    wait_answer(page, "lines")
    assert fake.requests[-1]["messages"][0]["content"] == "two\nlines"
    page.type("long")
    page.press("Enter")
    page.wait_text(LAST, "the beginning")
    page.press("Escape")
    wait_answer(page, "stopped")
    # Tab reaches everything once, in the order of the screen, and each stop can be seen.
    seen = []
    page.value("document.querySelector('.skip').focus()")
    for _ in range(60):
        page.press("Tab")
        at = page.value("""(() => {
          const one = document.activeElement, box = one.getBoundingClientRect();
          if (one === document.body) return null;
          return [one.ariaLabel ?? one.id ?? one.textContent, getComputedStyle(one).outlineStyle, box.width > 0 && box.height > 0, one.id];
        })()""")
        if at is None or at in seen and at[3]:
            break
        assert at[1] != "none" and at[2], at
        seen.append(at)
    ids = [at[3] for at in seen if at[3]]
    wanted = ["new-chat", "export-all", "import", "theme", "model", "settings", "export", "scroll", "prompt", "send"]
    assert [one for one in ids if one in wanted] == wanted, ids
    # A dialog holds the focus, and gives it back.
    page.value("document.querySelector('#settings').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#settings-dialog').open")
    for _ in range(14):
        page.press("Tab")
        assert page.value("document.activeElement === document.body || document.querySelector('#settings-dialog').contains(document.activeElement)")
    page.press("Escape")
    assert page.value("document.activeElement.id") == "settings"
    page.close()


def contrast_of(page):
    """The texts of the page with their contrast (WCAG 2.2, "contrast ratio"), the least first."""
    return page.value("""(() => {
      const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
      const light = ([r, g, b]) => [r, g, b].map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (one) => { for (; one; one = one.parentElement) { const c = parse(getComputedStyle(one).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255]; };
      const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
      return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.matches(':disabled, .hidden, option') &&
          (one.matches('input, select, textarea') || [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim())))
        .map((one) => [ratio(parse(getComputedStyle(one).color), behind(one)), one.tagName, one.textContent.slice(0, 40)]).sort((a, b) => a[0] - b[0]);
    })()""")


def test_accessible(browser, fake, shots):
    fake.answers |= {"sample": [SAMPLE], "broken": 500}
    for theme in ("light", "dark"):
        page = browser.open(fake.url, *DESKTOP)
        page.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
        ask(page, "sample")
        wait_answer(page, "example.org")
        assert page.value("getComputedStyle(document.body).backgroundColor") == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[theme]
        ask(page, "broken")
        page.wait_text(LAST, "it is broken")
        for dialog in (None, "settings", "export"):
            if dialog:
                page.click(f"#{dialog}")
            least = contrast_of(page)[0]
            assert least[0] >= 4.5, (theme, dialog, least)
            named = page.call("Accessibility.getFullAXTree")["nodes"]
            controls = [node for node in named if not node["ignored"] and node["role"]["value"] in
                        ("button", "textbox", "combobox", "spinbutton", "link", "dialog", "searchbox")]
            nameless = [node for node in controls if not node.get("name", {}).get("value")]
            assert len(controls) > 3 and not nameless, nameless
            if dialog:
                page.press("Escape")
        shots(page, theme)
        # The switch wins over the system, and stays.
        other = "dark" if theme == "light" else "light"
        page.value("document.querySelector('#theme').focus()")
        page.type(other[0])
        page.call("Input.dispatchKeyEvent", type="char", text=other[0])
        page.wait(f"document.documentElement.dataset.theme === '{other}'")
        page.visit(fake.url)
        assert page.value("getComputedStyle(document.body).backgroundColor") == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[other]
        assert contrast_of(page)[0][0] >= 4.5
        page.problems = [one for one in page.problems if "500" not in one]
        page.close()


def test_phone(browser, fake, shots):
    fake.answers["sample"] = [SAMPLE + "\n\n" + "averylongword" * 30 + "\n\n```\n" + "x = 1; " * 60 + "\n```"]
    page = browser.open(fake.url, *PHONE, touch=True)
    ask(page, "sample")
    wait_answer(page, "averylongword")
    shots(page, "phone")
    for look in ("closed", "open"):
        wide = page.value("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == PHONE[0], f"nothing sticks out sideways: {wide}"
        if look == "closed":
            page.click("#open-sidebar")
            page.wait("document.querySelector('#sidebar').getBoundingClientRect().x === 0")
    shots(page, "phone-list")
    small = page.value("""[...document.querySelectorAll('button, select, textarea')].filter((one) => one.checkVisibility({visibilityProperty: true}))
        .map((one) => [one.id || one.textContent, one.getBoundingClientRect().height]).filter(([_, height]) => height < 24)""")
    assert small == [], f"too small for a finger (WCAG 2.2, 2.5.8): {small}"
    page.press("Escape")
    page.wait("document.querySelector('#sidebar').checkVisibility({visibilityProperty: true}) === false")
    assert page.value("document.activeElement.id") == "open-sidebar"
    page.click("#settings")
    shots(page, "phone-settings")
    page.click("#settings-cancel")
    page.close()


def test_two_tabs(browser, fake, shots):
    page = browser.open(fake.url, *DESKTOP)
    ask(page, "from the first")
    wait_answer(page, "from the first")
    other = browser.open(fake.url, *DESKTOP, context=page.context)
    other.wait("document.querySelector('#conversations')?.innerText.includes('from the first')")
    other.click("#new-chat")
    ask(other, "from the second")
    wait_answer(other, "from the second")
    page.wait_text("#conversations", "from the second")
    assert page.text("#title") == "from the first", "what is on the screen stays"
    assert not other.problems, other.problems
    page.close()


def end_of(condition, page, what):
    for _ in range(600):
        if condition():
            return
        page.value("new Promise((done) => setTimeout(done, 20))")
    raise AssertionError(what)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page-server", required=True)
    parser.add_argument("--screenshots", type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if find_chromium() is None:
        print("no Chromium here: tests/install-peers FOLDER debian")
        return 77
    tests = [value for name, value in globals().items() if name.startswith("test_") and arguments.only in name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(pathlib.Path(folder)) as browser:

        def shots(page, name):
            if arguments.screenshots:
                page.screenshot(arguments.screenshots / f"{name}.png")

        for test in tests:
            began = time.monotonic()
            with FakeChat(arguments.page_server) as fake:
                test(browser, fake, shots)
            print(f"ok {test.__name__} {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
