"""What the mount's benchmarks share: a MinIO with data in it, mounts of it by Millrace and its peers, and the account
of what a process used."""
import contextlib
import hashlib
import hmac
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

ACCESS, SECRET, BUCKET = "benchmark", "benchmark-secret", "bench"
MB = 1e6


def find(program):
    peers = os.environ.get("MILLRACE_PEERS", "")
    return shutil.which(program, path=f"{peers}/bin:{os.environ['PATH']}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(what, ready, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.002)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Usage:
    """CPU seconds and peak memory of a process, from its start or from the last mark()."""

    def __init__(self, pid):
        self.proc = pathlib.Path(f"/proc/{pid}")
        self.begin = 0.0

    def mark(self):
        self.begin += self.cpu()

    def cpu(self):
        fields = (self.proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") - self.begin

    def peak_mb(self):
        return self.memory("VmHWM") / MB

    def resident(self):
        return self.memory("VmRSS")

    def memory(self, field):
        for line in (self.proc / "status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        return 0


class Server:
    """A MinIO whose data stays in `folder`. Anybody may read and write: the raw figures need no signatures."""

    def __init__(self, folder, millrace=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.trash = folder / "minio/.minio.sys/tmp/.trash"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = dict(os.environ, AWS_ENDPOINT_URL=self.url, AWS_REGION="us-east-1",
                                AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET)
        self.environment.pop("AWS_CA_BUNDLE", None)  # rclone 1.60 does not start with it
        self.process = self.start(folder, millrace)
        self.usage = Usage(self.process.pid)
        self.wait_until_up()

    def start(self, folder, _):
        return subprocess.Popen(
            [find("minio"), "server", "--quiet", str(folder / "minio"), "--address", f"127.0.0.1:{self.port}"],
            env=dict(os.environ, MINIO_ROOT_USER=ACCESS, MINIO_ROOT_PASSWORD=SECRET, MINIO_BROWSER="off"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_up(self):
        wait_until("minio", lambda: self.curl("-o", os.devnull, "-f", self.url + "/minio/health/live").returncode == 0)

    def curl(self, *arguments, **options):
        return subprocess.run(["curl", "-s", *arguments], check=False, **options)

    def make_bucket(self, millrace):
        subprocess.run([millrace, "--quiet", "mb", f"s3://{BUCKET}"], env=self.environment, check=True)
        policy = ('{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["*"]},'
                  f'"Action":["s3:*"],"Resource":["arn:aws:s3:::{BUCKET}","arn:aws:s3:::{BUCKET}/*"]}}]}}')
        self.put_signed(f"/{BUCKET}", "policy=", policy.encode())

    def put_signed(self, path, query, body):
        """One PUT with an AWS signature, version 4."""
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{moment[:8]}/us-east-1/s3/aws4_request"
        digest = hashlib.sha256(body).hexdigest()
        host = self.url.removeprefix("http://")
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = ";".join(headers)
        canonical = "\n".join(["PUT", path, query, *(f"{k}:{v}" for k, v in headers.items()), "", names, digest])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{SECRET}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={ACCESS}/{scope},SignedHeaders={names},"
                                    f"Signature={signature}")
        connection = http.client.HTTPConnection(host)
        connection.request("PUT", f"{path}?{query}", body, headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise RuntimeError(answer.read().decode())

    def sweep(self):
        """Frees at once what was deleted, which MinIO keeps for minutes: memory where its data are there."""
        for deleted in self.trash.glob("*"):
            shutil.rmtree(deleted, ignore_errors=True)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class S3d(Server):
    """`millrace s3d` on the same memory: a server that lists with next to no work."""

    def start(self, folder, millrace):
        return subprocess.Popen(
            [millrace, "s3d", "--root", str(folder / "s3d"), "--listen", f"127.0.0.1:{self.port}", "--anonymous",
             "--no-sync", "--access-key", ACCESS], env=dict(os.environ, MILLRACE_S3D_SECRET_KEY=SECRET),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_up(self):
        wait_until("s3d", lambda: listens(self.port))

    def make_bucket(self, millrace):
        subprocess.run([millrace, "--quiet", "mb", f"s3://{BUCKET}"], env=self.environment, check=True)


class Proxy:
    """delay_proxy before a server: `url` is as the server's, but each request waits."""

    def __init__(self, program, server, milliseconds):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([program, str(self.port), str(server.port), str(milliseconds)])
        wait_until("delay_proxy", lambda: listens(self.port))

    def stop(self):
        self.process.kill()
        self.process.wait()


class Mount:
    """One mounted file system; unmounted and its daemon ended by stop()."""

    def __init__(self, name, command, point, environment):
        self.name, self.point = name, pathlib.Path(point)
        # A run that was killed may have left its mount.
        subprocess.run(["fusermount3", "-uzq", str(self.point)], check=False, stderr=subprocess.DEVNULL)
        self.point.mkdir(parents=True, exist_ok=True)
        device = self.point.stat().st_dev
        begin = time.monotonic()
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        try:
            wait_until(f"the mount of {name}", lambda: self.point.stat().st_dev != device)
        except TimeoutError:
            self.stop()
            raise
        self.seconds_to_mount = time.monotonic() - begin
        self.usage = Usage(self.process.pid)

    def stop(self):
        subprocess.run(["fusermount3", "-uz", str(self.point)], check=False, stderr=subprocess.DEVNULL)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def millrace_mount(millrace, url, point, environment, *flags):
    command = [millrace, "mount", f"s3://{BUCKET}", str(point), "--foreground", "--quiet", *flags]
    return Mount("millrace", command, point, dict(environment, AWS_ENDPOINT_URL=url))


def s3fs_mount(url, point, environment):
    """As its documentation says for a server that is not Amazon's."""
    passwords = pathlib.Path(point).parent / "s3fs-passwd"
    passwords.write_text(f"{ACCESS}:{SECRET}")
    passwords.chmod(0o600)
    return Mount("s3fs", [find("s3fs"), BUCKET, str(point), "-f", "-o", f"url={url}", "-o", "use_path_request_style",
                          "-o", f"passwd_file={passwords}"], point, environment)


def rclone_mount(url, point, environment):
    settings = dict(environment, RCLONE_CONFIG_BENCH_TYPE="s3", RCLONE_CONFIG_BENCH_PROVIDER="Minio",
                    RCLONE_CONFIG_BENCH_ENDPOINT=url, RCLONE_CONFIG_BENCH_ACCESS_KEY_ID=ACCESS,
                    RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY=SECRET, RCLONE_CONFIG=os.devnull)
    return Mount("rclone", [find("rclone"), "mount", f"bench:{BUCKET}", str(point), "--vfs-cache-mode", "off"], point,
                 settings)


def mount(name, millrace, url, point, environment, *flags):
    if name.startswith("millrace"):
        return millrace_mount(millrace, url, point, environment, *flags)
    return {"s3fs": s3fs_mount, "rclone": rclone_mount}[name](url, point, environment)


@contextlib.contextmanager
def stopping(thing):
    try:
        yield thing
    finally:
        thing.stop()
