"""Libraries that take seconds to import, for test files that every test process collects and few run."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def skip_without(*libraries: str) -> None:
    """Skip the file that calls it where one of them is not installed, without importing any."""
    for library in libraries:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed", allow_module_level=True)


class LateImport:
    """Stands for a module, which is imported when the first of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # whoever collects tests looks at everything
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
