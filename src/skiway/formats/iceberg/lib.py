# mypy: implicit-reexport
"""The modules of PyIceberg, and ours that extend its classes. Each is loaded when it is first used, because that takes long.

from skiway.formats.iceberg import lib

lib.schema.Schema(lib.types.NestedField(...))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyiceberg import exceptions, manifest, partitioning, schema, transforms, typedef, types  # noqa: F401
    from pyiceberg.table import metadata, refs, snapshots, sorting, update  # noqa: F401

    from skiway.formats.iceberg import added_types, manifest_files, metadata_files  # noqa: F401

_PLACES: Final = {
    "pyiceberg": ("exceptions", "manifest", "partitioning", "schema", "transforms", "typedef", "types"),
    "pyiceberg.table": ("metadata", "refs", "snapshots", "sorting", "update"),
    "skiway.formats.iceberg": ("added_types", "manifest_files", "metadata_files"),
}

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        for package, names in _PLACES.items():
            if name in names:
                found = globals()[name] = import_module(f"{package}.{name}")
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
