"""The record: one DuckDB file, the spool of runs under way beside it, and what can be asked of them."""

from tracekit.store.commit import commit_run
from tracekit.store.database import DEFAULT_DATABASE, Store
from tracekit.store.doctor import doctor
from tracekit.store.early_commit import EarlyCommit
from tracekit.store.experiments import find_experiment, list_experiments, load_experiment, record_experiment
from tracekit.store.recovery import SpoolInfo, discard, find_spools, recover, spools_there
from tracekit.store.runs import (
    QueryResult,
    Removed,
    database_size,
    list_runs,
    load_run,
    remove_runs,
    resolve_run,
    run_rows,
    sql,
)
from tracekit.store.schema import SCHEMA_VERSION, STORAGE_VERSION, code_names
from tracekit.store.spool import EVENT_LEVELS, SpoolSink, SpoolTail, read_spool, spool_columns

__all__ = [
    "DEFAULT_DATABASE",
    "EVENT_LEVELS",
    "SCHEMA_VERSION",
    "STORAGE_VERSION",
    "EarlyCommit",
    "QueryResult",
    "Removed",
    "SpoolInfo",
    "SpoolSink",
    "SpoolTail",
    "Store",
    "code_names",
    "commit_run",
    "database_size",
    "discard",
    "doctor",
    "find_experiment",
    "find_spools",
    "list_experiments",
    "list_runs",
    "load_experiment",
    "load_run",
    "read_spool",
    "record_experiment",
    "recover",
    "remove_runs",
    "resolve_run",
    "run_rows",
    "spool_columns",
    "spools_there",
    "sql",
]
