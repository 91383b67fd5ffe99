#!/usr/bin/env python3
"""Memory of `millrace sync` between two prefixes of a million keys, from a server that makes listings up as it goes.

    sync_memory.py BUILD_DIR [--keys 1000000] [--differ 20]

Every --differ'th key is missing in the target and copied (the server says yes to all copies). Runs the sync with a tenth of
the keys first, so that growth with their number would show. Prints seconds, CPU seconds and peak resident memory.
"""
import argparse, os, socket, subprocess, sys, threading, time, urllib.parse

PAGE = 1000
copies = 0


def key(i):
    return f"shard-{i // 1000:05}/sample-{i:09}.jpg"


def page(prefix, first, keys, differ):
    """From key number `first` on; the target lacks some."""
    objects, i = [], first
    while i < keys and len(objects) < PAGE:
        if prefix != "to/" or i % differ:
            objects.append(f"<Contents><Key>{prefix}{key(i)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                           f"<ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag><Size>{i}</Size></Contents>")
        i += 1
    more = i < keys
    token = f"<NextContinuationToken>{i}</NextContinuationToken>" if more else ""
    return (f"<ListBucketResult><Name>bench</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(objects)}</ListBucketResult>").encode()


def serve(connection, keys, differ):
    global copies
    buffered = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in buffered:
                got = connection.recv(65536)
                if not got:
                    return
                buffered += got
            head, buffered = buffered.split(b"\r\n\r\n", 1)
            method, target = head.split(b" ", 2)[:2]
            query = dict(urllib.parse.parse_qsl(target.decode().partition("?")[2]))
            if method == b"GET" and "list-type" in query:
                body = page(query.get("prefix", ""), int(query.get("continuation-token", 0)), keys, differ)
            else:
                copies += method == b"PUT"
                body = b"<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>"
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" %
                               (len(body), body))


def measure(millrace, keys, differ):
    global copies
    copies = 0
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection, keys, differ), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    env = dict(os.environ, AWS_ENDPOINT_URL=f"http://127.0.0.1:{listener.getsockname()[1]}", AWS_REGION="us-east-1",
               AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", XDG_STATE_HOME="/nonexistent")
    start = time.monotonic()
    child = subprocess.Popen([millrace, "--quiet", "sync", "s3://bench/from/", "s3://bench/to/"], env=env)
    _, status, usage = os.wait4(child.pid, 0)
    listener.close()
    if status:
        sys.exit(f"sync ended with status {status}")
    wanted = (keys + differ - 1) // differ
    if copies != wanted:
        sys.exit(f"{copies} copies, not {wanted}")
    print(f"{keys:>9,} keys, {copies:,} copied: {time.monotonic() - start:6.1f} s, {usage.ru_utime + usage.ru_stime:5.1f} CPU s, "
          f"{usage.ru_maxrss / 1024:.0f} MB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--differ", type=int, default=20)
    options = parser.parse_args()
    for number in (options.keys // 10, options.keys):
        measure(os.path.join(os.path.abspath(options.build), "bin/millrace"), number, options.differ)
