"""A pytest plugin that breaks one module on purpose: `-p mutation`, with the change in MINISPEC_MUTANT.

The file on disk stays as it is. The module is compiled from its source with one passage replaced.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

MUTANT: dict[str, str] = json.loads(os.environ["MINISPEC_MUTANT"])


class Changed(SourceFileLoader):
    """Loads the module's source with the one place where `old` stands changed to `new`, past any bytecode on disk."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if source.count(MUTANT["old"]) != 1:
            sys.exit(f"mutation: {MUTANT['old']!r} stands {source.count(MUTANT['old'])} times in {self.path}")
        return self.source_to_code(source.replace(MUTANT["old"], MUTANT["new"]).encode(), self.path)


class Finder:
    """Finds the one module that is to be changed; all others are found as ever."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == MUTANT["module"] else None
        if spec is not None and spec.origin is not None:
            spec.loader = Changed(name, spec.origin)
        return spec


assert MUTANT["module"] not in sys.modules
sys.meta_path.insert(0, Finder)
