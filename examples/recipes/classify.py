"""Serves a classifier of texts: a folder of Hugging Face with its tokenizer. It needs torch and transformers.

    python3 classify.py FOLDER [--listen HOST:PORT]

POST /classify with {"texts": ["…", …]} answers {"classes": [{"label": "LABEL_1", "score": 0.98}, …]}, one for each text.
"""
import argparse
import http.server
import json
import threading

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

LARGEST = 1 << 20  # bytes of a request


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--listen", default="127.0.0.1:8090")
    flags = parser.parse_args()
    model = AutoModelForSequenceClassification.from_pretrained(flags.folder).eval()
    tokenizer = (BertTokenizer if model.config.model_type == "bert" else AutoTokenizer).from_pretrained(flags.folder)
    one_at_a_time = threading.Lock()

    def classify(texts: list[str]) -> list[dict]:
        rows = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.inference_mode(), one_at_a_time:
            scores, classes = model(**rows).logits.softmax(-1).max(-1)
        return [{"label": model.config.id2label[int(each)], "score": float(score)} for each, score in zip(classes, scores)]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                texts = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), LARGEST)))["texts"]
                status, answer = 200, {"classes": classify([str(text) for text in texts])}
            except (KeyError, TypeError, ValueError) as error:
                status, answer = 400, {"error": f'send {{"texts": ["…"]}}: {error!r}'}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    host, _, port = flags.listen.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    print(f"http://{host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
