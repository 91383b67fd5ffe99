#!/usr/bin/env python3
"""`millrace cp` beside s5cmd and plain curl, both ways, against one MinIO server; all files in memory (/dev/shm).

    compare.py BUILD_DIR [--sets small,big,one,list] [--rounds 3] [--files 3000]

small: 3,000 files of 570 kB; big: 12 of 100 MB; one: 2 GB; list: 100,000 keys. Rounds are interleaved, each begins with another
tool, and the first is discarded; every tool reads what millrace uploaded. Prints for each tool the median seconds, CPU seconds a GB and peak
resident memory, and millrace's ratio to it (above 1: millrace is faster). The floor is curl in parallel on presigned
URLs: no signature to make, no checksum, no manifest. minio and s5cmd come from $MILLRACE_PEERS/bin or PATH.
"""
import argparse, concurrent.futures, datetime, filecmp, hashlib, hmac, http.client, os, shutil, signal, socket
import statistics, subprocess, sys, tempfile, time, urllib.parse

KEY, SECRET, REGION = "bench", "benchbench1", "us-east-1"


def presign(method, host, path, query=()):
    """A URL that S3 takes for an hour (Signature Version 4, payload unsigned)."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    fields = list(query) + [("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"{KEY}/{scope}"),
                            ("X-Amz-Date", now), ("X-Amz-Expires", "3600"), ("X-Amz-SignedHeaders", "host")]
    encoded = "&".join(f"{k}={urllib.parse.quote(v, safe='')}" for k, v in sorted(fields))
    canonical = "\n".join([method, path, encoded, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + SECRET.encode()
    for part in (now[:8], REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"http://{host}{path}?{encoded}&X-Amz-Signature={signature}"


def rotated(items, by):
    """Nobody is first each time: whoever is pays for memory that nobody has touched before."""
    return items[by % len(items):] + items[:by % len(items)]


class Bench:
    def __init__(self, build, rounds):
        self.rounds, self.work = rounds, tempfile.mkdtemp(prefix="transfer-bench.", dir="/dev/shm")
        peers = os.environ.get("MILLRACE_PEERS")
        path = f"{peers}/bin:{os.environ['PATH']}" if peers else os.environ["PATH"]
        self.millrace = os.path.join(os.path.abspath(build), "bin/millrace")
        self.s5cmd, minio = shutil.which("s5cmd", path=path), shutil.which("minio", path=path)
        if not self.s5cmd or not minio:
            sys.exit("compare.py: no minio or s5cmd in $MILLRACE_PEERS/bin or PATH")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{s.getsockname()[1]}"
        self.env = dict(os.environ, AWS_ENDPOINT_URL=f"http://{self.host}", S3_ENDPOINT_URL=f"http://{self.host}",
                        AWS_REGION=REGION, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
                        XDG_STATE_HOME=f"{self.work}/state", MINIO_ROOT_USER=KEY, MINIO_ROOT_PASSWORD=SECRET,
                        MINIO_BROWSER="off")
        self.server = subprocess.Popen([minio, "server", "--quiet", f"{self.work}/data", "--address", self.host],
                                       env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.answers():
            time.sleep(0.1)
        subprocess.run([self.millrace, "--quiet", "mb", "s3://bench"], env=self.env, check=True)
        self.figures = {}

    def answers(self):
        try:
            connection = http.client.HTTPConnection(self.host, timeout=5)
            connection.request("GET", "/")
            return connection.getresponse().status == 403
        except OSError:
            return False

    def close(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    def time(self, case, tool, argv, keep):
        """Runs one tool once; keeps seconds, CPU seconds and resident kB unless it is the round to discard."""
        start = time.monotonic()
        child = subprocess.Popen(argv, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        if status != 0:
            sys.exit(f"{' '.join(argv[:8])}…: status {status}\n{errors.decode()[-2000:]}")
        if keep:
            self.figures.setdefault((case, tool), []).append((seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))

    def curl(self, case, requests, keep, parallel=8):
        """`requests`: pairs of a URL and the curl options that belong to it."""
        config = f"{self.work}/curl.config"
        with open(config, "w") as f:
            f.write("next\n".join(f'url = "{url}"\n{options}\n' for url, options in requests))
        argv = ["curl", "-sS", "-Z", "--parallel-max", str(parallel), "--parallel-immediate", "-K", config]
        self.time(case, "curl", argv, keep)

    def report(self, case, gigabytes):
        mine = None
        for tool in ("millrace", "s5cmd", "curl"):
            runs = self.figures.get((case, tool))
            if not runs:
                continue
            seconds, cpu, rss = (statistics.median(column) for column in zip(*runs))
            mine = mine or seconds
            print(f"{case:<11} {tool:<9} {seconds:7.2f} s  {cpu / gigabytes:5.2f} CPU s/GB  {rss / 1024:4.0f} MB  "
                  f"{seconds / mine:5.2f}x", flush=True)

    def moving(self, name, count, size):
        source, out = f"{self.work}/source", f"{self.work}/out"
        os.mkdir(source)
        names = [f"f{i:05}" for i in range(count)]
        for file in names:
            with open(f"{source}/{file}", "wb") as f:
                for left in range(size, 0, -1 << 20):
                    f.write(os.urandom(min(left, 1 << 20)))
        ups = {"millrace": lambda keep: self.time(f"up {name}", "millrace", [self.millrace, "--quiet", "cp", "-r",
                                                  f"{source}/", "s3://bench/m/"], keep),
               "s5cmd": lambda keep: self.time(f"up {name}", "s5cmd", [self.s5cmd, "cp", f"{source}/", "s3://bench/s/"], keep)}
        downs = {"millrace": lambda keep: self.time(f"down {name}", "millrace", [self.millrace, "--quiet", "cp", "-r",
                                                    "s3://bench/m/", f"{out}/"], keep),
                 "s5cmd": lambda keep: self.time(f"down {name}", "s5cmd", [self.s5cmd, "cp", "s3://bench/m/*", f"{out}/"], keep)}
        if name == "one":
            piece = size // 8
            gets = [(presign("GET", self.host, f"/bench/m/{names[0]}"),
                     f'output = "{out}/{i}"\nrange = "{i * piece}-{(i + 1) * piece - 1}"') for i in range(8)]
        else:
            gets = [(presign("GET", self.host, f"/bench/m/{file}"), f'output = "{out}/{file}"') for file in names]
            puts = [(presign("PUT", self.host, f"/bench/c/{file}"),
                     f'upload-file = "{source}/{file}"\nheader = "Expect:"') for file in names]
            ups["curl"] = lambda keep: self.curl(f"up {name}", puts, keep, 8 if name == "small" else 4)
        downs["curl"] = lambda keep: self.curl(f"down {name}", gets, keep)
        for round in range(self.rounds + 1):
            for way in (ups, downs):
                for tool in rotated(list(way), round):
                    if way is downs:
                        self.fresh(out)
                    way[tool](round > 0)
                    if way is downs and tool == "millrace":
                        for file in names:
                            if not filecmp.cmp(f"{source}/{file}", f"{out}/{file}", shallow=False):
                                sys.exit(f"{file} came back changed")
            shutil.rmtree(out)
        subprocess.run([self.millrace, "--quiet", "rm", "-r", "s3://bench/"], env=self.env, check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(source)
        for way in ("up", "down"):
            self.report(f"{way} {name}", count * size / 1e9)

    def listing(self, count):
        def put(keys):
            connection = http.client.HTTPConnection(self.host)
            for key in keys:
                connection.request("PUT", presign("PUT", self.host, key).split(self.host)[1], body=b"0123456789")
                connection.getresponse().read()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(put, [[f"/bench/list/{i:06}" for i in range(first, count, 8)] for first in range(8)]))
        bare = [sys.executable, os.path.abspath(__file__), "--bare", self.host]
        tools = {"millrace": [self.millrace, "ls", "-r", "s3://bench/list/"],
                 "s5cmd": [self.s5cmd, "ls", "s3://bench/list/*"], "curl": bare}
        for round in range(self.rounds + 1):
            for tool in rotated(list(tools), round):
                self.time("list", tool, tools[tool], round > 0)
        print(f"{count} keys; `curl` stands for one connection that lists and parses nothing; CPU s/GB: CPU seconds")
        self.report("list", 1)

    def fresh(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)


def bare_listing(host):
    connection, token = http.client.HTTPConnection(host), None
    while True:
        query = [("list-type", "2"), ("prefix", "list/")] + ([("continuation-token", token)] if token else [])
        connection.request("GET", presign("GET", host, "/bench", query).split(host, 1)[1])
        body = connection.getresponse().read()
        at = body.find(b"<NextContinuationToken>")
        if at < 0:
            return
        token = body[at + 23:body.index(b"<", at + 23)].decode()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        sys.exit(bare_listing(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--sets", default="small,big,one,list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=3000, help="of the set `small`")
    options = parser.parse_args()
    bench = Bench(options.build, options.rounds)
    try:
        for name in options.sets.split(","):
            if name == "list":
                bench.listing(100_000)
            else:
                bench.moving(name, *{"small": (options.files, 570_000), "big": (12, 100_000_000), "one": (1, 2_000_000_000)}[name])
    finally:
        bench.close()
