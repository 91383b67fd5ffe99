#!/usr/bin/env bash
# `millrace cp` beside s5cmd, both ways, against one MinIO server: 1,000 files of 570 kB and one of 512 MiB, everything in
# memory (/dev/shm). Rounds are interleaved, the first is discarded; prints the median seconds and their ratio.
#   compare.sh BUILD_DIR [ROUNDS]        minio and s5cmd from $MILLRACE_PEERS/bin or PATH
set -euo pipefail
millrace=$(cd "$1" && pwd)/bin/millrace; rounds=${2:-4}
[ -z "${MILLRACE_PEERS:-}" ] || PATH=$MILLRACE_PEERS/bin:$PATH
for peer in minio s5cmd; do command -v "$peer" >/dev/null || { echo "compare.sh: no $peer"; exit 2; }; done
work=$(mktemp -d /dev/shm/transfer-bench.XXXXXX); server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null; }; rm -rf "$work"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=us-east-1
export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=benchbench1
MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off \
  minio server --quiet "$work/data" --address "127.0.0.1:$port" >"$work/log" 2>&1 &
server=$!
until [ "$(curl -s -o /dev/null -w '%{http_code}' "$AWS_ENDPOINT_URL/")" = 403 ]; do sleep 0.1; done
"$millrace" --quiet mb s3://bench

mkdir -p "$work/small" "$work/large"
head -c 570000000 /dev/urandom | split -b 570000 -a 4 - "$work/small/f"
head -c 536870912 /dev/urandom >"$work/large/one"

timed() {  # FILE COMMAND...: appends the seconds
  local into=$1 start=$EPOCHREALTIME; shift
  "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; exit 1; }
  awk "BEGIN { printf \"%.3f\n\", $EPOCHREALTIME - $start }" >>"$into"
}
s5() { s5cmd --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }
for ((round = 0; round < rounds; ++round)); do
  for set in small large; do
    timed "$work/up.$set.millrace" "$millrace" --quiet cp -r "$work/$set/" "s3://bench/m-$set/"
    timed "$work/up.$set.s5cmd" s5 cp "$work/$set/" "s3://bench/s-$set/"
    rm -rf "$work/out"; mkdir "$work/out"
    timed "$work/down.$set.millrace" "$millrace" --quiet cp -r "s3://bench/m-$set/" "$work/out/"
    diff -rq "$work/$set" "$work/out"
    rm -rf "$work/out"; mkdir "$work/out"
    timed "$work/down.$set.s5cmd" s5 cp "s3://bench/s-$set/*" "$work/out/"
  done
done
median() { tail -n +2 "$1" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for what in up.small up.large down.small down.large; do
  ours=$(median "$work/$what.millrace") theirs=$(median "$work/$what.s5cmd")
  awk "BEGIN { printf \"%-11s millrace %.2f s, s5cmd %.2f s, ratio %.2f\n\", \"$what\", $ours, $theirs, $theirs / $ours }"
done
