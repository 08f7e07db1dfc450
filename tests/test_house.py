"""The rules of the house, held by walking the tree: import directions, sizes, names, ``__all__``, docs, light imports."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "tracekit": "tracekit",
    "replay_engine": "replay_engine",
    "kernels": "replay_kernels",
    "tuner": "tuner",
    "dashboards": "dashboards",
}
OURS = set(PACKAGES.values())
MAY_IMPORT = {
    "replay_kernels": {"replay_kernels"},
    "replay_engine": {"replay_engine"},
    "tracekit": {"tracekit", "replay_engine"},
    "tuner": {"tuner", "tracekit", "replay_engine"},
    "dashboards": {"dashboards", "tracekit"},
}
ENGINE_LIBRARIES = {"numpy"}
KERNEL_LIBRARIES = {"torch", "triton", "numpy"}
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|managers?|base|common|misc)(_|$)")
MODULE_LINES, FUNCTION_LINES, CLASS_LINES = 300, 40, 200
# At most three entries each, each with its reason.
LONG_MODULES: dict[str, str] = {
    "replay_engine/types.py": "the one file of shared types: every seam reads it, and splitting it would only scatter the seam",
}
LONG_FUNCTIONS: dict[str, str] = {
    "replay_engine/coast.py:run": "the loop over coasted iterations: its locals are what makes an iteration cost a microsecond",
    "replay_engine/plain_admission.py:admit_plain": "one pass per admission: a call more per request costs as much as its join",
    "replay_engine/replica.py:_asynchronous": "one turn of the loop: who is told what, and when, is its order",
}
LONG_CLASSES: dict[str, str] = {
    "replay_engine/coast.py:Coaster": "three quarters of it are the one loop over coasted iterations, allowed its length above",
    "replay_engine/spans.py:SpanTracker": "one short method for each thing a request can turn to, all on the same open span",
}
HEAVY = ("torch", "triton", "dash", "plotly", "optuna", "ray", "polars", "duckdb", "pyarrow")


def modules() -> list[Path]:
    return sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts[0] = PACKAGES[parts[0]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Absolute module names that ``path`` imports, and whether at module level (typing-only imports left out)."""
    tree = parsed(path)
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    typing_only = {
        id(n)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for statement in test.body
        for n in ast.walk(statement)
    }
    for node in ast.walk(tree):
        lazy = id(node) in inside or id(node) in typing_only
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, not lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}, line {node.lineno}: relative import"
            yield node.module or "", not lazy


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    name = dotted(path)
    package = name.split(".")[0]
    for module, at_load in imports(path):
        top = module.split(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top in OURS:
            allowed = set(MAY_IMPORT[package])
            if name.startswith("tracekit.cli") and not at_load:
                allowed |= {"tuner", "dashboards"}
            if name.startswith("replay_engine.torch_engine"):
                allowed.add("replay_kernels")
            assert top in allowed, f"{relative(path)} imports {module}"
        elif package == "replay_engine":
            torch_side = name.startswith("replay_engine.torch_engine")
            allowed = KERNEL_LIBRARIES if torch_side else ENGINE_LIBRARIES
            assert top in allowed, f"{relative(path)} imports {module}: the engine runs on numpy alone"
        elif package == "replay_kernels":
            assert top in KERNEL_LIBRARIES, f"{relative(path)} imports {module}"
        elif package == "tracekit" and at_load:
            assert top not in {"torch", "triton", "dash", "optuna", "ray"}, f"{relative(path)} imports {module} at load"


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_sizes(path: Path) -> None:
    name = relative(path)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES or name in LONG_MODULES, f"{name}: {lines} lines"
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        is_class = isinstance(node, ast.ClassDef)
        limit, allowed = (CLASS_LINES, LONG_CLASSES) if is_class else (FUNCTION_LINES, LONG_FUNCTIONS)
        assert size <= limit or f"{name}:{node.name}" in allowed, f"{name}, line {node.lineno}: {node.name} has {size} lines"


def test_the_allow_lists_are_short_and_needed() -> None:
    for allowed in (LONG_MODULES, LONG_FUNCTIONS, LONG_CLASSES):
        assert len(allowed) <= 3
        assert all(len(reason) > 20 for reason in allowed.values())
        assert all((ROOT / entry.split(":")[0]).is_file() for entry in allowed)
    assert all(len((ROOT / name).read_text().splitlines()) > MODULE_LINES for name in LONG_MODULES)


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_names_and_docstrings(path: Path) -> None:
    for part in path.relative_to(ROOT).with_suffix("").parts:
        assert not FORBIDDEN_NAMES.search(part), f"{relative(path)}: a name that says nothing"
    assert ast.get_docstring(parsed(path)), f"{relative(path)}: no module docstring"


@pytest.mark.parametrize("path", [p for p in modules() if p.name != "__main__.py"], ids=relative)
def test_all_is_there_and_true(path: Path) -> None:
    tree = parsed(path)
    targets = [
        n.target if isinstance(n, ast.AnnAssign) else n.targets[0] for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)
    ]
    assert any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets), f"{relative(path)}: no __all__"
    if PACKAGES[path.relative_to(ROOT).parts[0]] == "replay_kernels":
        return
    if dotted(path).startswith("replay_engine.torch_engine"):
        pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")
    module = importlib.import_module(dotted(path))
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), f"{relative(path)}: __all__ names {name}, which is not there"


def test_every_package_is_installed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {dotted(path) for path in modules() if path.name == "__init__.py"}
    assert listed == there
    folders = {dotted(path / "__init__.py") for folder in PACKAGES for path in _folders_with_modules(folder)}
    assert folders == there, "a folder of modules without __init__.py"


def _folders_with_modules(folder: str) -> set[Path]:
    return {path.parent for path in (ROOT / folder).rglob("*.py")}


def test_the_reference_is_current() -> None:
    from tracekit.cli.reference import commands, reference

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == reference(), "docs/cli.md is not what the commands say; `make docs` writes it"
    for name, command in commands():
        assert f"`{name}`" in text
        assert command.help, f"{name}: no help"
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}: no help"


def test_every_verb_has_the_shared_options() -> None:
    from tracekit.cli.reference import commands

    for name, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        if name != "tracekit":
            assert {"--json", "--debug"} <= options, name


@pytest.mark.parametrize("statement", ["import tracekit, replay_engine", "import tracekit.cli.main as m; m.main(['--help'])"])
def test_light_imports(statement: str) -> None:
    code = f"import sys; {statement}; print('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert shown.splitlines()[-1] == "LOADED"


def test_help_is_quick() -> None:
    command = [sys.executable, "-m", "tracekit.cli.main", "--help"]
    spent = []
    for _ in range(3):
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        after, wall = os.times(), time.perf_counter() - start
        spent.append(min(wall, after.children_user + after.children_system - before.children_user - before.children_system))
    assert min(spent) < 0.4


def test_no_path_of_this_machine_is_in_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile(rb"(?<![\w.])/(work|root|home|Users|tmp/brief)/[\w.-]+")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".gz", ".parquet") or not path.is_file():
            continue
        found = pattern.search(path.read_bytes())
        assert found is None or name == "tests/test_house.py", f"{name}: {found[0]!r}"


def test_nothing_that_is_ignored_is_tracked() -> None:
    """A tracked link named like an ignored folder replaces that folder, contents and all, in every checkout that merges it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert listed.stdout.splitlines() == []


def test_cases_have_the_same_names_in_whatever_second_they_are_collected() -> None:
    """Several processes collect the tests, and each has to find the same: packed bytes name the second they were packed in."""
    packed, clock = r"gzip\.compress\((?!.*mtime)", r"\btime\.|\bnow\(|\buuid\b|\bgetpid\b|\bmkdtemp\b"
    moving = re.compile(rf"{packed}|{clock}|\bdefault_rng\(\)|\brandom\.")
    found = [
        f"{path.relative_to(ROOT)}:{decorator.lineno}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for decorator in node.decorator_list
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call) and call is not decorator and moving.search(ast.unparse(call))
    ]
    assert not found
