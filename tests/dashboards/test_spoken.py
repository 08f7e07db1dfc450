"""No page shows the backticks that set commands off in a terminal: not in its own texts, nor in an error's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dashboards
from dashboards.spoken import spoken
from tracekit.errors import UsageError

FILES = sorted(Path(dashboards.__file__).parent.rglob("*.py"))
NO_PAGES = ("spoken.py", "gunicorn_conf.py")


def texts(tree: ast.Module) -> Iterator[str]:
    """All strings but those that stand by themselves: docstrings, of attributes too."""
    alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def errors_as_they_are(tree: ast.Module) -> Iterator[str]:
    """Where the text of a caught error is taken without ``spoken``."""
    for handler in (each for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler) and each.name):
        for node in ast.walk(handler):
            taken: list[ast.expr] = []
            if isinstance(node, ast.FormattedValue):
                taken = [node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
                taken = node.args
            if any(isinstance(each, ast.Name) and each.id == handler.name for each in taken):
                yield ast.unparse(node)


def test_what_pages_say_has_no_backticks() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES if file.name not in NO_PAGES}
    assert len(trees) > 50
    assert [(file.name, text) for file, tree in trees.items() for text in texts(tree) if "`" in text] == []
    assert [(file.name, each) for file, tree in trees.items() for each in errors_as_they_are(tree)] == []


def test_an_error_is_said_without_them() -> None:
    assert spoken(UsageError("none yet; `tracekit tune TRACE` makes one")) == "none yet; tracekit tune TRACE makes one"
