#!/usr/bin/env python3
"""The program in one file of `make release` runs in roots that have no libraries of ours: one with busybox alone, without any
C library, one with musl, and other releases of Debian. So does the bundle with the engine, where it was made.

    roots.py --program FILE [--engine FOLDER] [--cache FOLDER] [ROOT...]

ROOT: busybox, musl (busybox, and musl as the only C library), or a release of Debian (default: busybox musl bullseye trixie
sid). What comes from Debian's mirrors is kept in FOLDER (default: build/release-roots). Needs root. Exit status 77: something that the test needs is not here.
"""

import argparse
import contextlib
import http.server
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

SOURCE = pathlib.Path(__file__).resolve().parents[2]
NEEDED = {"busybox": "busybox-static", "mmdebstrap": "mmdebstrap", "unshare": "util-linux", "openssl": "openssl"}
PLACE = r"""
set -eu
cd "$1"
# A copy of another test's mount would keep it alive after its unmount.
while read -r _ point type _; do case $type in fuse.*) umount -l "$point" || true ;; esac; done </proc/mounts
mkdir -p proc dev tmp mnt root
mount --bind . . && cd "$1"
mount -t proc proc proc; mount -t tmpfs -o mode=755 dev dev; mkdir dev/shm; mount -t tmpfs shm dev/shm; mount -t tmpfs -o mode=1777 tmp tmp
for node in null zero full random urandom tty fuse; do
  [ ! -e "/dev/$node" ] || { touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"; }
done
shift
exec env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root "$@"
"""
# What a user does, in the language of every shell. store.test is in /etc/hosts alone.
SCRIPT = r"""
set -eu
say() { echo "roots: $*"; }
fail() { echo "roots: FAILED: $*"; exit 1; }
never() { if "$@" >/tmp/out 2>&1; then fail "$* succeeded"; fi; }
export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://store.test:$PORT

millrace --version
millrace mb "s3://$BUCKET"
seq 200000 >/tmp/numbers
millrace cp /tmp/numbers "s3://$BUCKET/numbers"
millrace ls "s3://$BUCKET/" | grep -q numbers || fail "ls does not list numbers"
millrace cat "s3://$BUCKET/numbers" | cmp - /tmp/numbers || fail "cat gives other bytes"
mkdir -p /tmp/tree/below
for i in 1 2 3 4 5 6 7 8 9; do echo "file $i" >"/tmp/tree/below/$i"; done
millrace sync /tmp/tree "s3://$BUCKET/tree" >/tmp/log
millrace sync "s3://$BUCKET/tree" /tmp/back >/tmp/log
cmp /tmp/tree/below/9 /tmp/back/below/9
say "objects: written, listed, read, synchronised"

for i in $(seq 400); do echo "{\"text\": \"Line $i of a text: größer, 数据, and the $((i * 7919 % 1000)) words of a corpus.\"}"; done >/tmp/text.jsonl
millrace cp /tmp/text.jsonl "s3://$BUCKET/text.jsonl"
millrace tokenizer train --input "s3://$BUCKET/text.jsonl" --vocab-size 300 --output "s3://$BUCKET/tokenizer.model" >/tmp/log 2>&1 || { cat /tmp/log; fail "tokenizer train"; }
millrace data tokenize "s3://$BUCKET/text.jsonl" --tokenizer "s3://$BUCKET/tokenizer.model" --output "s3://$BUCKET/tokens" >/tmp/log 2>&1 || { cat /tmp/log; fail "data tokenize"; }
millrace ls "s3://$BUCKET/" | grep -q tokens.bin || fail "data tokenize wrote nothing"
say "data: a tokenizer trained, a corpus tokenized"

# Certificates: none here, then those of a variable.
never millrace --endpoint-url "https://127.0.0.1:$TLS_PORT" ls "s3://$BUCKET/"
case $HAS_AUTHORITIES in
  no) grep -q "ca-certificates" /tmp/out || { cat /tmp/out; fail "the error names no cure"; } ;;
esac
never env SSL_CERT_FILE=/authority.pem millrace --endpoint-url "https://127.0.0.1:$TLS_PORT" ls "s3://$BUCKET/"
grep -q "the store of the test" /tmp/out || { cat /tmp/out; fail "SSL_CERT_FILE is not used"; }
mkdir -p /etc/pki/tls/certs && cp /authority.pem /etc/pki/tls/certs/ca-bundle.crt
case $HAS_AUTHORITIES in
  no)
    never millrace --endpoint-url "https://127.0.0.1:$TLS_PORT" ls "s3://$BUCKET/"
    grep -q "the store of the test" /tmp/out || { cat /tmp/out; fail "Fedora's file of authorities is not found"; } ;;
esac
say "certificates: missed with a cure, named, found"

# Without terminfo and without a locale.
TERM=xterm-256color LANG=de_DE.UTF-8 millrace doctor >/tmp/out 2>&1 || true
grep -q "cpu" /tmp/out || { cat /tmp/out; fail "doctor"; }
never millrace serve "s3://$BUCKET/model"
grep -q "millrace-engine" /tmp/out || { cat /tmp/out; fail "the missing engine is not named"; }
ln -sf millrace /usr/bin/millrace-csi
millrace csi --help | grep -q "millrace-csi\|csi" || fail "csi"

if [ -e /dev/fuse ]; then
  millrace mount "s3://$BUCKET" /mnt
  cmp /mnt/numbers /tmp/numbers || fail "the mount has other bytes"
  echo written >/mnt/new && [ "$(cat /mnt/new)" = written ]
  millrace umount /mnt
  [ "$(millrace cat "s3://$BUCKET/new")" = written ]
  say "mount: read, written"
else
  say "no /dev/fuse: nothing was mounted"
fi
say "all of it works"
"""
# What a user without root sees where there is no fusermount3.
USER_SCRIPT = r"""
export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev-secret AWS_REGION=us-east-1 HOME=/tmp
export AWS_ENDPOINT_URL=http://store.test:$PORT
[ -e /dev/fuse ] || exit 0
mkdir /tmp/own
if millrace mount "s3://$BUCKET" /tmp/own >/tmp/out 2>&1; then echo "roots: FAILED: a mount without fusermount3"; exit 1; fi
grep "package fuse3" /tmp/out || { cat /tmp/out; echo "roots: FAILED: the missing fusermount3 is not named"; exit 1; }
"""
# A job of two ranks.
JOB = """name: tested
model:
  config: {hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64}
data:
  sources: [{url: "s3://BUCKET/text.jsonl"}]
  tokenizer: s3://BUCKET/tokenizer.model
  sequence_length: 32
train: {steps: 4, global_batch: 4, micro_batch: 2}
checkpoint: {url: "s3://BUCKET/run", every_steps: 4}
run: {processes_per_node: 2}
"""
ENGINE_SCRIPT = r"""
export PATH=/opt/engine/bin:$PATH
millrace eval --help >/tmp/out || fail "eval"
millrace serve --help >/tmp/out || fail "serve"
millrace train /job.yaml >/tmp/log 2>&1 || { cat /tmp/log; fail "train"; }
millrace ckpt verify "s3://$BUCKET/run"
say "the engine: two ranks trained"
"""


class Store(http.server.BaseHTTPRequestHandler):
    """A store that tells who it is, over TLS."""

    def do_GET(self):
        body = b"<Error><Code>AccessDenied</Code><Message>the store of the test</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # clients that do not trust it


def authority(folder):
    """Makes a certificate of 127.0.0.1 that its own key signs."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=tested", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "authority.pem"],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


@contextlib.contextmanager
def tls_store(folder):
    server = Server(("127.0.0.1", 0), Store)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "authority.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def s3d(program, folder):
    environment = {**os.environ, "MILLRACE_S3D_ACCESS_KEY": "dev", "MILLRACE_S3D_SECRET_KEY": "dev-secret"}
    process = subprocess.Popen([program, "s3d", "--root", folder / "buckets", "--listen", "127.0.0.1:0"],
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    try:
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


def add_musl(cache, folder):
    """Adds musl's dynamic linker, which is its C library, where distributions of musl have it."""
    package = cache / "musl.deb"
    if not package.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            os.chmod(scratch, 0o755)  # apt loads as a user of its own
            subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "musl"], cwd=scratch, check=True)
            shutil.move(next(pathlib.Path(scratch).glob("musl_*.deb")), package)
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    assert list((folder / "lib").glob("ld-musl-*")), "the package musl has no dynamic linker"


def make_root(name, cache, folder):
    """Makes the root of a name in `folder`."""
    if name in ("busybox", "musl"):
        (folder / "bin").mkdir()
        (folder / "etc").mkdir()
        (folder / "usr/bin").mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), folder / "bin/busybox")
        for applet in subprocess.run(["busybox", "--list"], check=True, capture_output=True, text=True).stdout.split():
            if applet != "busybox":
                (folder / "bin" / applet).symlink_to("busybox")
        if name == "musl":
            add_musl(cache, folder)
    else:
        archive = cache / f"{name}.tar"
        if not archive.exists():
            cache.mkdir(parents=True, exist_ok=True)
            # How this machine reaches the mirrors.
            reach = [f"--aptopt={file}" for file in sorted(pathlib.Path("/etc/apt/apt.conf.d").iterdir())
                     if re.search(r"^Acquire", file.read_text(errors="replace"), flags=re.M)]  # fmt: skip
            subprocess.run(["mmdebstrap", "--quiet", "--variant=essential", "--format=tar", *reach, name, archive.with_suffix(".part"),
                            f"deb http://deb.debian.org/debian {name} main"], check=True)  # fmt: skip
            archive.with_suffix(".part").rename(archive)
        subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
    (folder / "etc/hosts").write_text("127.0.0.1 localhost store.test\n")
    # Services that a program of another C library cannot load: where Debian has their libraries, to load one is a crash.
    (folder / "etc/nsswitch.conf").write_text(
        "passwd: compat systemd\ngroup: compat systemd\nhosts: compat hesiod mymachines resolve [!UNAVAIL=return] files myhostname dns\n")


def run(name, program, engine, ports, work, cache):
    folder = work / name
    folder.mkdir()
    make_root(name, cache, folder)
    shutil.copy(program, folder / "usr/bin/millrace")
    shutil.copy(work / "authority.pem", folder / "authority.pem")
    (folder / "script").write_text(SCRIPT + (ENGINE_SCRIPT if engine else ""))
    if engine:
        shutil.copytree(engine, folder / "opt/engine")
        (folder / "job.yaml").write_text(JOB.replace("BUCKET", f"of-{name}"))
    has = any((folder / file).exists() for file in ("etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem"))
    (folder / "user-script").write_text(USER_SCRIPT)
    print(f"roots: {name}", flush=True)

    def inside(*words):
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-c", PLACE, "sh", folder,
             f"BUCKET=of-{name}", f"PORT={ports[0]}", f"TLS_PORT={ports[1]}", f"HAS_AUTHORITIES={'yes' if has else 'no'}",
             "chroot", *words], check=False).returncode == 0  # fmt: skip

    has_fusermount = (folder / "usr/bin/fusermount3").exists()
    return inside(".", "/bin/sh", "/script") and (
        has_fusermount or inside("--userspec=65534:65534", ".", "/bin/sh", "/user-script"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--engine", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=SOURCE / "build/release-roots")
    parser.add_argument("roots", nargs="*", default=["busybox", "musl", "bullseye", "trixie", "sid"])
    arguments = parser.parse_args()
    if not arguments.program.exists():
        print("skipped: there is no program in one file: `make release` makes it")
        sys.exit(77)
    if os.geteuid() != 0:
        print("skipped: only root can make roots")
        sys.exit(77)
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            print(f"skipped: {program} is not here (Debian's {package})")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        authority(work)
        program = arguments.program.resolve()
        engine = arguments.engine if arguments.engine and arguments.engine.is_dir() else None
        with s3d(program, work) as port, tls_store(work) as tls_port:
            failed = [root for root in arguments.roots if not run(root, program, engine, (port, tls_port), work, arguments.cache)]
    sys.exit(f"roots: failed in {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
