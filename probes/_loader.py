"""First thing that runs on the host: an in-memory package, so that nothing is written there.

This file is executed as a script, not imported: `diag.hosts.payload` sends it followed by one call of `start`.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.machinery import ModuleSpec

# Runtime annotations are not evaluated; this name exists for the type checker only.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Dict, Optional, Sequence


class MemoryImporter:
    """Imports modules from a dict of sources; keys are full module names, a package ends in `.__init__`."""

    def __init__(self, sources: Dict[str, str]) -> None:
        self.sources = sources

    def _key(self, fullname: str) -> Optional[str]:
        for key in (fullname, fullname + ".__init__"):
            if key in self.sources:
                return key
        return None

    def _file(self, key: str) -> str:
        """The name in tracebacks: that of the checkout. (linecache ignores names in angle brackets.)"""
        return key.split(".", 1)[-1].replace(".", "/") + ".py"

    def find_spec(self, fullname: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Any:
        key = self._key(fullname)
        if key is None:
            return None
        # importlib asks only for the methods below; Loader's base class would add nothing.
        loader: Any = self
        return ModuleSpec(fullname, loader, origin=self._file(key), is_package=key != fullname)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102  our own text, from the wire

    def get_code(self, fullname: str) -> CodeType:
        key = self._key(fullname) or fullname
        return compile(self.sources[key], self._file(key), "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        """Asked by linecache, so that tracebacks show our lines although no file exists."""
        return self.sources[self._key(fullname) or fullname]


def start(parts: Sequence[str]) -> None:
    """parts: this text, the JSON list of the sources' names, each source, and the JSON request."""
    names = json.loads(parts[1])
    sys.meta_path.insert(0, MemoryImporter(dict(zip(names, parts[2:]))))
    package = names[0].split(".")[0]
    importlib.import_module(package + ".probes._wire").serve(json.loads(parts[-1]))
