"""Modules that are named like the verb in them and can be called like it: ``tracekit.replay(...)`` is its ``replay(...)``."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

__all__ = ["CallableModule", "make_callable"]


class CallableModule(ModuleType):
    """A module that stands for the function of its own name."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__verb(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__verb)

    @property
    def __verb(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])


def make_callable(name: str) -> None:
    """Make the module ``name`` callable, which the import system binds to its package whatever the package says."""
    sys.modules[name].__class__ = CallableModule
