"""Compare rows with DuckDB, and open a DuckDB with extensions as an independent reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from skiway.formats.schemas import field_id, leaves


@contextmanager
def extended(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection with the bundled extensions, installed into `folder`."""
    from duckdb_extensions import import_extension

    with duckdb.connect(config={"extension_directory": str(folder)}) as duck:
        for extension in ("avro", "httpfs", "iceberg", "delta"):
            import_extension(extension, con=duck)
            duck.load_extension(extension)
        yield duck


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    """Assert that both have the same columns and the same rows, in any order; NaN equals NaN, and NULL equals NULL."""
    assert found.column_names == expected.column_names
    with duckdb.connect() as duck:
        duck.register("found", plain(found))
        duck.register("expected", plain(expected))
        unexpected = duck.sql("FROM found EXCEPT ALL FROM expected LIMIT 3").to_arrow_table().to_pylist()
        missing = duck.sql("FROM expected EXCEPT ALL FROM found LIMIT 3").to_arrow_table().to_pylist()
    assert (unexpected, missing) == ([], [])


def plain(table: pa.Table) -> pa.Table:
    """The table without the metadata that readers put on fields."""
    return table.replace_schema_metadata(None)


def number_of(schema: pa.Schema, *path: str) -> int:
    """The id of the field at `path`."""
    by_path = {leaf.path: leaf.id for leaf in leaves(schema)}
    by_path |= {(field.name,): field_id(field) or 0 for field in schema}
    return by_path[path]
