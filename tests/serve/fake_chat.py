"""A server with OpenAI's chat interface whose answers a test writes. It shows the real page (page_server)."""
import http.server
import json
import socket
import subprocess
import threading
import urllib.error
import urllib.request

PAGE_HEADERS = ("Content-Type", "Content-Security-Policy", "ETag", "Cache-Control", "Referrer-Policy", "X-Content-Type-Options",
                "Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy")


class Hold:
    """Keeps an answer from going on until the test lets it."""

    def __init__(self):
        self.released = threading.Event()


CUT = object()    # the connection breaks here
ENDED = object()  # the answer ends in order, but before its end mark


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a browser that leaves resets its connections


class FakeChat:
    """`answers` maps the last line of a request to what is streamed: texts, Hold, CUT and ENDED. A number is an error's status. Other
    messages are answered by their own words. `requests` are the bodies that came; `gone` counts clients that left in an answer.
    With `page_server`, GET / is the page."""

    def __init__(self, page_server=None, key=None):
        self.page_server, self.key = page_server, key
        self.answers, self.requests, self.gone = {}, [], 0
        self.models, self.message, self.connections = ["tiny", "tiny-lora"], "it is broken", []

    def __enter__(self):
        if self.page_server:
            self.page = subprocess.Popen([self.page_server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.page_url = f"http://{self.page.stdout.readline().strip()}/"
        fake = self

        class Handler(_Handler):
            chat = fake

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def stop(self):
        """The server goes away: its connections break, and new ones are refused."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended before

    def __exit__(self, *_):
        for answer in self.answers.values():
            for part in answer if isinstance(answer, list) else ():
                if isinstance(part, Hold):
                    part.released.set()
        self.stop()
        if self.page_server:
            self.page.stdin.close()
            self.page.wait(60)
            self.page.stdout.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat = None

    def setup(self):
        super().setup()
        self.chat.connections.append(self.connection)

    def log_message(self, *_):
        pass

    def send_body(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, status, value, **headers):
        self.send_body(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def refuse(self, status, message, code=None, **headers):
        self.send_json(status, {"error": {"message": message, "type": "error", "param": None, "code": code}}, **headers)

    def is_allowed(self):
        if self.chat.key is None or self.headers.get("Authorization") == f"Bearer {self.chat.key}":
            return True
        self.refuse(401, "this server wants a key that it knows", "invalid_api_key", **{"WWW-Authenticate": "Bearer"})
        return False

    def do_GET(self):
        if self.path == "/" and self.chat.page_server:
            try:
                with urllib.request.urlopen(self.chat.page_url) as page:
                    self.send_body(200, page.read(), {name: page.headers[name] for name in PAGE_HEADERS})
            except urllib.error.URLError as error:
                self.send_body(502, str(error).encode(), {})
        elif not self.is_allowed():
            return
        elif self.path == "/v1/models":
            base = self.chat.models[0]  # the others are its adapters
            self.send_json(200, {"object": "list", "data": [
                {"id": name, "object": "model", "max_model_len": 256} | ({} if name == base else {"parent": base})
                for name in self.chat.models]})
        else:
            self.refuse(404, f"no such resource: {self.path}", "not_found")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        self.chat.requests.append({"path": self.path, **body})
        asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        asked = asked.rpartition("\n")[2]  # a message that got no answer, or a text, stands before it
        answer = self.chat.answers.get(asked, [asked])
        if isinstance(answer, list) and answer and isinstance(answer[0], list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]  # another one each time
        if isinstance(answer, int):
            headers = {"Retry-After": "7"} if answer == 429 else {}
            return self.refuse(answer, {404: "no such resource", 400: "the model has no chat template"}.get(answer, self.chat.message), **headers)
        try:
            self.stream(body, answer)
        except OSError:
            self.chat.gone += 1
            self.close_connection = True

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def stream(self, body, answer):
        chat = "messages" in body
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = 0
        for part in answer:
            if part is CUT:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            if part is ENDED:
                return self.chunk(b"")
            if isinstance(part, Hold):
                while not part.released.wait(0.02):
                    self.chunk(b": still there\n\n")  # a comment; fails once the client has gone
                continue
            for at in range(0, max(1, len(part)), 7):
                pieces += 1
                piece = {"delta": {"content": part[at:at + 7]}} if chat else {"text": part[at:at + 7]}
                self.event({"choices": [{"index": 0, "finish_reason": None, **piece}]})
        self.event({"choices": [{"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}]})
        if body.get("stream_options", {}).get("include_usage"):
            self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": pieces}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
