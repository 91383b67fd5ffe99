#!/usr/bin/env python3
"""`millrace job submit` shows a cluster's API a client certificate, and trusts only the cluster's own authority.

    kubernetes_certificates.py --millrace PROGRAM

Exit status 77: openssl is not here.
"""
import argparse
import base64
import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

JOB = """name: tested
data: {sources: [{url: "s3://corpus/x.jsonl"}], tokenizer: "s3://corpus/t.model"}
train: {steps: 10, global_batch: 8}
run: {launcher: kubernetes, image: "millrace:1"}
"""


class Refusal(http.server.BaseHTTPRequestHandler):
    """An API server that tells who asks, and lets nobody in."""

    def do_GET(self):
        subject = dict(pair for (pair,) in self.connection.getpeercert()["subject"])
        body = json.dumps({"kind": "Status", "message": f"{subject['commonName']} may not"}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def authority(folder, name):
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def certificate(folder, name, by):
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key",
            "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    if not shutil.which("openssl"):
        print("skipped: openssl is not in PATH")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for each in ("cluster", "other"):
            authority(folder, each)
        for each in ("server", "jane"):
            certificate(folder, each, "cluster")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        context.load_verify_locations(folder / "cluster.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (folder / "job.yaml").write_text(JOB)

        def submit(trusted):
            user = {kind: base64.b64encode((folder / file).read_bytes()).decode() for kind, file in
                    (("client-certificate-data", "jane.pem"), ("client-key-data", "jane.key"))}
            (folder / "config").write_text(json.dumps({
                "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "jane"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{server.server_port}",
                                                       "certificate-authority": trusted}}],
                "users": [{"name": "jane", "user": user}]}))
            return subprocess.run([arguments.millrace, "job", "submit", "--no-check", folder / "job.yaml"], check=False,
                                  env=os.environ | {"KUBECONFIG": str(folder / "config"), "MILLRACE_STATE_DIR": str(folder / "state")},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        try:
            known = submit("cluster.pem")
            assert known.returncode == 5 and "jane may not" in known.stderr, known
            strange = submit("other.pem")
            assert strange.returncode == 2 and "SSL certificate" in strange.stderr and "in the kubeconfig" in strange.stderr, strange
            key = base64.b64encode((folder / "jane.key").read_bytes()).decode()
            assert key not in known.stderr + strange.stderr
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


main()
