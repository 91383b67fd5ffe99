#!/usr/bin/env bash
# Reads one 256 MiB object in 8 ranges, and 2,000 objects of 10 KiB 64 at a time, from one MinIO server: our store,
# `curl -Z` (bytes to /dev/null, nothing checked) and s5cmd (files in memory). Rounds are interleaved; prints the seconds of
# each and the ratios of the medians. Ours are from first request to last byte, the others those of the whole command.
#   compare.sh BUILD_DIR [ROUNDS]        minio and s5cmd from $MILLRACE_PEERS/bin or PATH
set -euo pipefail
bench=$1/bin/object_bench; rounds=${2:-5}
[ -z "${MILLRACE_PEERS:-}" ] || PATH=$MILLRACE_PEERS/bin:$PATH
for peer in minio s5cmd curl; do command -v "$peer" >/dev/null || { echo "compare.sh: no $peer"; exit 2; }; done
work=$(mktemp -d /dev/shm/object-bench.XXXXXX); server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null; }; rm -rf "$work"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
endpoint=http://127.0.0.1:$port
export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=benchbench1 AWS_REGION=us-east-1
MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off \
  minio server --quiet "$work/data" --address "127.0.0.1:$port" >"$work/log" 2>&1 &
server=$!
until [ "$(curl -s -o /dev/null -w '%{http_code}' "$endpoint/")" = 403 ]; do sleep 0.1; done
"$bench" "$endpoint" bench setup
"$bench" "$endpoint" bench urls >"$work/small" 2>"$work/large.url"
for i in 0 1 2 3 4 5 6 7; do
  [ "$i" = 0 ] || echo next
  printf 'url = "%s"\nrange = %d-%d\noutput = /dev/null\n' "$(cat "$work/large.url")" $((i << 25)) $(((i + 1 << 25) - 1))
done >"$work/large"

seconds() { local start=$EPOCHREALTIME; "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; exit 1; }
  awk "BEGIN { printf \"%.3f\n\", $EPOCHREALTIME - $start }"; }
s5() { rm -rf "$work/out"; mkdir "$work/out"; s5cmd --endpoint-url "$endpoint" --numworkers 64 cp "$@" "$work/out/"; }
for ((round = 0; round < rounds; ++round)); do
  "$bench" "$endpoint" bench large >>"$work/large.ours"
  seconds curl -sSf -Z --parallel-max 8 -K "$work/large" >>"$work/large.curl"
  seconds s5 --concurrency 8 --part-size 32 s3://bench/large >>"$work/large.s5cmd"
  "$bench" "$endpoint" bench small >>"$work/small.ours"
  seconds curl -sSf -Z --parallel-max 64 -K "$work/small" >>"$work/small.curl"
  seconds s5 's3://bench/small/*' >>"$work/small.s5cmd"
done
median() { sort -n "$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
for what in large small; do
  for who in ours curl s5cmd; do
    awk -v what=$what -v who=$who -v m="$(median "$work/$what.$who")" -v o="$(median "$work/$what.ours")" '
      { all = all " " $1 }
      END { printf "%-6s %-6s median %.3f s (%s/s), %.2fx ours  [%s ]\n", what, who, m,
            what == "large" ? sprintf("%.0f MB", 268.4 / m) : sprintf("%.0f objects", 2000 / m), m / o, all }' "$work/$what.$who"
  done
done
