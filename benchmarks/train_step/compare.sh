#!/usr/bin/env bash
# Runs train_step and its PyTorch peer one after the other, and prints the ratio of their speeds.
#   compare.sh PROGRAM PYTHON [arguments of both …]     PROGRAM: build/release/bin/train_step; PYTHON: one with torch
set -euo pipefail
program=$1 python=$2
shift 2
ours=$("$program" "$@")
peer=$("$python" "$(dirname "$0")/torch_peer.py" "$@")
echo "$ours"
echo "$peer"
"$python" -c '
import json, sys
ours, peer = json.loads(sys.argv[1]), json.loads(sys.argv[2])
speed, cpu = ours["tokens_per_s"] / peer["tokens_per_s"], peer["cpu_s"] / ours["cpu_s"]
print("millrace / {}: {:.2f} in tokens/s, {:.2f} in tokens per second of processor time".format(peer["program"], speed, cpu))
' "$ours" "$peer"
