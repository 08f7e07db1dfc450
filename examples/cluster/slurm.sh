#!/bin/bash
#SBATCH --job-name=tracekit-tune
#SBATCH --array=0-7
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=02:00:00
#SBATCH --requeue
# One study on eight tasks: task 0 searches and answers, the others only search. The study is in a PostgreSQL database, its URL in
# TRACEKIT_STORAGE, its password in ~/.pgpass. Submitted from the folder with job.toml and the trace.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
more=()
if [ "${SLURM_ARRAY_TASK_ID:-0}" -ne 0 ]; then
  more=(--search-only)
fi
exec tracekit tune --job job.toml --workers "${SLURM_CPUS_PER_TASK:-1}" --db "${TMPDIR:-/tmp}/tracekit-$SLURM_ARRAY_TASK_ID.duckdb" "${more[@]}"
