# mypy: implicit-reexport
"""The modules of PyIceberg. Each is loaded when it is first used, because that takes long.

from skiway.formats.iceberg import lib

lib.schema.Schema(lib.types.NestedField(...))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyiceberg import exceptions, manifest, partitioning, schema, transforms, typedef, types  # noqa: F401
    from pyiceberg.table import metadata, refs, snapshots, sorting, update  # noqa: F401

_OF_TABLES: Final = ("metadata", "refs", "snapshots", "sorting", "update")
_OTHERS: Final = ("exceptions", "manifest", "partitioning", "schema", "transforms", "typedef", "types")

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _OF_TABLES + _OTHERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = import_module(f"pyiceberg.{'table.' if name in _OF_TABLES else ''}{name}")
        return found
