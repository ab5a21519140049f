"""Puts the density among Pyro's distributions, without importing Pyro before somebody does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_PLACE, _NAME = "pyro.distributions", "MollifiedExpFamily"


def add_to_distributions() -> None:
    """Makes ``pyro.distributions.MollifiedExpFamily`` the density, now or as soon as Pyro is imported."""
    module = sys.modules.get(_PLACE)
    if module is not None and hasattr(sys.modules["pyro"], "infer"):  # all of Pyro is there
        from pyro_mbde.density.distribution import MollifiedExpFamily

        setattr(module, _NAME, MollifiedExpFamily)
    elif module is not None:
        _add(module)
    else:
        sys.meta_path.insert(0, _Finder())


def _add(module: ModuleType) -> None:
    """Looks the density up when it is asked for: it imports Pyro, which may be half imported now."""

    def __getattr__(name: str) -> Any:  # noqa: N807  # PEP 562's name
        if name != _NAME:
            raise AttributeError(f"module {_PLACE!r} has no attribute {name!r}")
        from pyro_mbde.density.distribution import MollifiedExpFamily

        setattr(module, _NAME, MollifiedExpFamily)
        return MollifiedExpFamily

    setattr(module, "__getattr__", __getattr__)  # noqa: B010  # mypy knows no such attribute


class _Finder(MetaPathFinder):
    """Waits for the import of Pyro's distributions, and then goes away."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's own spec, with a loader that adds the density afterwards."""
        if fullname != _PLACE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """A loader that adds the density to the module that another one has loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates the module as it would be without this."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Loads the module, then adds the density."""
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _add(module)
