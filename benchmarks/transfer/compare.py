#!/usr/bin/env python3
"""`millrace` beside s5cmd and plain curl, both ways, against one MinIO server; all files in memory (/dev/shm).

    compare.py BUILD_DIR [--sets small,big,one,md5,list] [--rounds 3] [--files 3000] [--latency MS] [--beside NAME=MILLRACE]

small: 3,000 files of 570 kB; big: 12 of 100 MB; one: 2 GB; md5: 8 of 100 MB that other tools uploaded, so that the server
knows no checksum of them but MD5s (s5cmd's: of parts of 50 MB; curl's: of the whole), downloaded; list: 100,000 keys, listed by `ls` and added up by `du`. Rounds are
interleaved, each begins with another tool, and the first is discarded; every tool reads what millrace uploaded (but md5). Prints for each
tool the median seconds with the least and the most, CPU seconds a GB and peak resident memory, and millrace's ratio to it (the
median of the rounds' ratios; above 1: millrace is faster). The floor is curl in parallel on presigned URLs: no signature to
make, no checksum, no manifest.

Data is made in --data before anything is measured, and found there by later runs; --prepare only makes it, --clean removes it.
--latency holds every request back in a proxy (BUILD_DIR/bin/delay_proxy). --beside runs another build of millrace as well.
minio and s5cmd come from $MILLRACE_PEERS/bin or PATH.
"""
import argparse, concurrent.futures, contextlib, datetime, filecmp, hashlib, hmac, http.client, os, shlex, shutil, signal, socket
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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self, options, objects=None):
        """`objects`: a folder of the server's that stays; otherwise it begins and ends with none."""
        self.rounds, self.data = options.rounds, options.data
        self.work = tempfile.mkdtemp(prefix="transfer-bench.", dir="/dev/shm")
        peers = os.environ.get("MILLRACE_PEERS")
        path = f"{peers}/bin:{os.environ['PATH']}" if peers else os.environ["PATH"]
        build = os.path.join(os.path.abspath(options.build), "bin")
        self.millraces = {"millrace": [f"{build}/millrace", "--quiet", *shlex.split(options.flags)]}
        for name, _, command in (text.partition("=") for text in options.beside):
            self.millraces[name] = [*shlex.split(command), "--quiet"]
        self.s5cmd, minio = shutil.which("s5cmd", path=path), shutil.which("minio", path=path)
        if not self.s5cmd or not minio:
            sys.exit("compare.py: no minio or s5cmd in $MILLRACE_PEERS/bin or PATH")
        self.tools = options.tools.split(",") if options.tools else [*self.millraces, "s5cmd", "curl"]
        port, self.processes = free_port(), []
        self.host = self.server = f"127.0.0.1:{port}"
        self.env = dict(os.environ, AWS_REGION=REGION, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
                        XDG_STATE_HOME=f"{self.work}/state", MINIO_ROOT_USER=KEY, MINIO_ROOT_PASSWORD=SECRET,
                        MINIO_BROWSER="off")
        self.start([minio, "server", "--quiet", objects or f"{self.work}/data", "--address", self.server])
        if options.latency:
            proxy = free_port()
            self.host = f"127.0.0.1:{proxy}"
            self.start([f"{build}/delay_proxy", str(proxy), str(port), str(options.latency)])
        self.env.update(AWS_ENDPOINT_URL=f"http://{self.host}", S3_ENDPOINT_URL=f"http://{self.host}")
        while not (self.answers(self.server) and self.answers(self.host)):
            time.sleep(0.1)
        if not objects:
            self.run([*self.millraces["millrace"], "mb", "s3://bench"])
        self.figures = {}

    def start(self, argv):
        self.processes.append(subprocess.Popen(argv, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def run(self, argv):
        subprocess.run(argv, env=self.env, check=True, stdout=subprocess.DEVNULL)

    def answers(self, host):
        try:
            connection = http.client.HTTPConnection(host, timeout=5)
            connection.request("GET", "/")
            return connection.getresponse().status == 403
        except (OSError, http.client.HTTPException):
            return False

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()
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

    def curl(self, requests, parallel=8):
        """The command for `requests`: pairs of a URL and the curl options that belong to it."""
        config = tempfile.mktemp(prefix="curl.", dir=self.work)
        with open(config, "w") as f:
            f.write("next\n".join(f'url = "{url}"\n{options}\n' for url, options in requests))
        return ["curl", "-sS", "-Z", "--parallel-max", str(parallel), "--parallel-immediate", "-K", config]

    def report(self, case, gigabytes):
        mine = self.figures.get((case, "millrace"), [])
        for tool in self.tools:
            runs = self.figures.get((case, tool))
            if not runs:
                continue
            seconds, cpu, rss = (statistics.median(column) for column in zip(*runs))
            ratio = statistics.median(theirs[0] / ours[0] for theirs, ours in zip(runs, mine)) if mine else 0
            spread = f"({min(run[0] for run in runs):.2f} to {max(run[0] for run in runs):.2f})"
            print(f"{case:<11} {tool:<9} {seconds:6.2f} s {spread:<16} {cpu / gigabytes:5.2f} CPU s/GB {rss / 1024:5.0f} MB"
                  f" {ratio:6.2f}x", flush=True)

    def moving(self, name, count, size):
        source, out = f"{self.data}/{name}", f"{self.work}/out"
        names = [f"f{i:05}" for i in range(count)]
        ups, downs = {}, {}
        for tool, command in self.millraces.items():
            ups[tool] = [*command, "cp", "-r", f"{source}/", f"s3://bench/{'millrace' if tool == 'millrace' else 'other'}/"]
            downs[tool] = [*command, "cp", "-r", "s3://bench/millrace/", f"{out}/"]
        ups["s5cmd"] = [self.s5cmd, "cp", f"{source}/", "s3://bench/other/"]
        downs["s5cmd"] = [self.s5cmd, "cp", "s3://bench/millrace/*", f"{out}/"]
        if name == "one":
            piece = size // 8
            gets = [(presign("GET", self.host, f"/bench/millrace/{names[0]}"),
                     f'output = "{out}/{i}"\nrange = "{i * piece}-{(i + 1) * piece - 1}"') for i in range(8)]
        else:
            gets = [(presign("GET", self.host, f"/bench/millrace/{file}"), f'output = "{out}/{file}"') for file in names]
            puts = [(presign("PUT", self.host, f"/bench/other/{file}"),
                     f'upload-file = "{source}/{file}"\nheader = "Expect:"') for file in names]
            ups["curl"] = self.curl(puts, 8 if name == "small" else 4)
        downs["curl"] = self.curl(gets)
        for round in range(self.rounds + 1):
            for way, commands in (("up", ups), ("down", downs)):
                for tool in rotated([tool for tool in self.tools if tool in commands], round):
                    if way == "down":
                        fresh(out)
                    self.time(f"{way} {name}", tool, commands[tool], round > 0)
                    if way == "down" and tool == "millrace" and round == 0:
                        for file in names:
                            if not filecmp.cmp(f"{source}/{file}", f"{out}/{file}", shallow=False):
                                sys.exit(f"{file} came back changed")
            shutil.rmtree(out)
        self.run([*self.millraces["millrace"], "rm", "-r", "s3://bench/"])
        for way in ("up", "down"):
            self.report(f"{way} {name}", count * size / 1e9)

    def downloading(self, name, count, size):
        """Of objects that s5cmd uploaded in parts, and curl as a whole."""
        source, out = f"{self.data}/{name}", f"{self.work}/out"
        names = [f"f{i:05}" for i in range(count)]
        self.run([self.s5cmd, "cp", f"{source}/", "s3://bench/parts/"])
        self.run(self.curl([(presign("PUT", self.host, f"/bench/whole/{file}"),
                             f'upload-file = "{source}/{file}"\nheader = "Expect:"') for file in names]))
        for round in range(self.rounds + 1):
            for kind in ("parts", "whole"):
                downs = {tool: [*command, "cp", "-r", f"s3://bench/{kind}/", f"{out}/"]
                         for tool, command in self.millraces.items()}
                downs["s5cmd"] = [self.s5cmd, "cp", f"s3://bench/{kind}/*", f"{out}/"]
                for tool in rotated([tool for tool in self.tools if tool in downs], round):
                    fresh(out)
                    self.time(f"md5 {kind}", tool, downs[tool], round > 0)
        for kind in ("parts", "whole"):
            self.report(f"md5 {kind}", count * size / 1e9)

    def fill(self, count):
        """Makes the keys that are listed."""
        def put(keys):
            connection = http.client.HTTPConnection(self.server)
            for key in keys:
                connection.request("PUT", presign("PUT", self.server, key).split(self.server)[1], body=b"0123456789")
                connection.getresponse().read()
        self.run([*self.millraces["millrace"], "mb", "s3://bench"])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(put, [[f"/bench/list/{i:06}" for i in range(first, count, 8)] for first in range(8)]))

    def listing(self, count):
        bare = [sys.executable, os.path.abspath(__file__), "--bare", self.host]
        cases = {"ls": {"s5cmd": [self.s5cmd, "ls", "s3://bench/list/*"], "curl": bare},
                 "du": {"s5cmd": [self.s5cmd, "du", "s3://bench/list/*"], "curl": bare}}
        for tool, command in self.millraces.items():
            cases["ls"][tool] = [command[0], *command[2:], "ls", "-r", "s3://bench/list/"]
            cases["du"][tool] = [command[0], *command[2:], "du", "s3://bench/list/"]
        for round in range(self.rounds + 1):
            for case, commands in cases.items():
                for tool in rotated(self.tools, round):
                    self.time(case, tool, commands[tool], round > 0)
        print(f"{count} keys; `curl` stands for one connection that lists and parses nothing; CPU s/GB: CPU seconds")
        for case in cases:
            self.report(case, 1)

def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)


def prepare(folder, count, size):
    """`count` files of random bytes, unless they are there."""
    if os.path.isdir(folder) and len(os.listdir(folder)) == count:
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for i in range(count):
        with open(f"{folder}/f{i:05}", "wb") as f:
            for left in range(size, 0, -1 << 20):
                f.write(os.urandom(min(left, 1 << 20)))


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--sets", default="small,big,one,md5,list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=3000, help="of the set `small`")
    parser.add_argument("--keys", type=int, default=100_000, help="of the set `list`")
    parser.add_argument("--data", default="/dev/shm/transfer-bench-data")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--latency", type=int, default=0)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--tools", default="", help="only these: millrace, those of --beside, s5cmd, curl")
    parser.add_argument("--flags", default="", help="more global flags for millrace")
    options = parser.parse_args()
    if options.clean:
        return shutil.rmtree(options.data, ignore_errors=True)
    shapes = {"small": (options.files, 570_000), "big": (12, 100_000_000), "one": (1, 2_000_000_000),
              "md5": (8, 100_000_000)}
    sets = options.sets.split(",")
    for name in sets:
        if name in shapes:
            prepare(f"{options.data}/{name}", *shapes[name])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what it has in memory must go
    keys = f"{options.data}/list"
    if "list" in sets and not os.path.exists(f"{keys}.filled"):
        shutil.rmtree(keys, ignore_errors=True)
        with contextlib.closing(Bench(options, keys)) as bench:
            bench.fill(options.keys)
        open(f"{keys}.filled", "w").close()
    if options.prepare:
        return
    for name in sets:
        with contextlib.closing(Bench(options, keys if name == "list" else None)) as bench:
            if name == "list":
                bench.listing(options.keys)
            elif name == "md5":
                bench.downloading(name, *shapes[name])
            else:
                bench.moving(name, *shapes[name])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        bare_listing(sys.argv[2])
    else:
        main()
