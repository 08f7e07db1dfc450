#!/usr/bin/env bash
# Proves or breaks every claim about a GPU in one run of under eight minutes: checks, kernels, engine, event log, calibration, simulator. A table last.
#   benchmarks/gpu/run.sh [--out FOLDER] [--only PART]...     on a machine with torch >= 2.11, triton >= 3.6 and numpy; nothing is installed
#   benchmarks/gpu/run.sh --device cpu --tiny                 rehearses its whole control flow on a machine without a GPU
# PYTHON names the interpreter (python3 unless given). A part that fails or runs out of time does not stop the others.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
paths="$(mktemp -d)"
trap 'rm -rf "$paths"' EXIT
# The directory kernels/ is imported as replay_kernels, which an installation would see to.
ln -s "$root/kernels" "$paths/replay_kernels"
export PYTHONPATH="$paths:$root${PYTHONPATH:+:$PYTHONPATH}"
"${PYTHON:-python3}" -m benchmarks.gpu.parts "$@"
