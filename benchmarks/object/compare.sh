#!/usr/bin/env bash
# Our store beside `curl -Z` (presigned URLs, bytes to /dev/null and from a file in memory, nothing checked: the floor) and
# s5cmd (files in memory), on one MinIO server with its data in memory: one object of 256 MiB in 8 ranges, 1,000 objects of
# 570 kB 16 at a time, 8 puts of 32 MiB, 500 puts of 570 kB. Rounds are interleaved, the first is discarded. Prints seconds
# (ours from first request to last byte, the others those of the whole command) and client CPU seconds per GB: medians, and
# the ratio of the seconds to ours.
#   compare.sh BUILD_DIR [ROUNDS]        minio and s5cmd from $MILLRACE_PEERS/bin or PATH
set -euo pipefail
bench=$1/bin/object_bench; rounds=${2:-4}
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
"$bench" "$endpoint" bench urls "$work"
mkdir "$work/parts" "$work/smalls"
for i in 0 1 2 3 4 5 6 7; do ln "$work/part" "$work/parts/$i"; done
for ((i = 0; i < 500; ++i)); do ln "$work/small" "$work/smalls/$i"; done

declare -A bytes=([down-large]=268435456 [down-small]=570000000 [up-large]=268435456 [up-small]=285000000)
declare -A at_once=([down-large]=8 [down-small]=16 [up-large]=8 [up-small]=16)
TIMEFORMAT='%R %U %S'
timed() {  # CASE COMMAND...: seconds and CPU seconds per GB
  local what=$1; shift
  { time "$@" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }; } 2>"$work/time"
  awk -v b="${bytes[$what]}" '{ printf "%.3f %.3f\n", $1, ($2 + $3) / (b / 1e9) }' "$work/time"
}
s5() {
  rm -rf "$work/out"; mkdir "$work/out"
  local run=(s5cmd --endpoint-url "$endpoint" --numworkers "${at_once[$1]}" cp)
  case $1 in
    down-large) "${run[@]}" --concurrency 8 --part-size 32 s3://bench/large "$work/out/" ;;
    down-small) "${run[@]}" 's3://bench/small/*' "$work/out/" ;;
    up-large) "${run[@]}" --part-size 64 "$work/parts/" s3://bench/s5-parts/ ;;
    up-small) "${run[@]}" "$work/smalls/" s3://bench/s5-small/ ;;
  esac
}
cases='down-large down-small up-large up-small'
for ((round = 0; round < rounds; ++round)); do
  for what in $cases; do
    "$bench" "$endpoint" bench "$what" >>"$work/$what.ours"
    timed "$what" curl -sSf -Z --parallel-max "${at_once[$what]}" -K "$work/$what.curl" >>"$work/$what.floor"
    timed "$what" s5 "$what" >>"$work/$what.s5cmd"
  done
done
median() { tail -n +2 "$1" | awk -v c="$2" '{ print $c }' | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for what in $cases; do
  for who in ours floor s5cmd; do
    f=$work/$what.$who; s=$(median "$f" 1); cpu=$(median "$f" 2); ours=$(median "$work/$what.ours" 1)
    awk "BEGIN { printf \"%-10s %-6s %.3f s  %5.0f MB/s  %.2f CPU s/GB  %.2fx ours\n\", \"$what\", \"${who/floor/curl}\", $s, ${bytes[$what]} / $s / 1e6, $cpu, $s / $ours }"
  done
done
