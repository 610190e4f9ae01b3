"""Rules that rows keep: NOT NULL and CHECK for each row, UNIQUE and PRIMARY KEY for all of them together."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters.quoting import identifier, text_literal
from skiway.airport.memory.definition import Check, Key, TableDefinition
from skiway.airport.memory.rows import Rows
from skiway.airport.memory.sandbox import Sandbox
from skiway.errors import ConstraintViolation, InvalidArgument

__all__ = ["check_keys", "check_rows"]


def check_rows(definition: TableDefinition, rows: pa.RecordBatch, sandbox: Sandbox) -> None:
    """Refuse rows that break NOT NULL or a CHECK; `rows` has all visible columns, and may have more."""
    for index, field in enumerate(definition.columns):
        if not field.nullable and pc.any(rows.column(index).is_null(), min_count=0).as_py():
            raise ConstraintViolation(
                f"NOT NULL constraint failed: {definition.name}.{field.name}",
                key="not_null",
                table=definition.name,
                column=field.name,
            )
    if definition.checks and rows.num_rows:
        visible = pa.Table.from_batches([rows]).select(definition.visible.names)
        for check in definition.checks:
            _check(definition, check, visible, sandbox)


def _check(definition: TableDefinition, check: Check, rows: pa.Table, sandbox: Sandbox) -> None:
    failed = f"CHECK constraint failed on table {definition.name} with expression CHECK({check.expression})"
    try:
        broken = sandbox.is_broken(rows, check.expression)
    except InvalidArgument as error:
        raise ConstraintViolation(f"{failed} ({error.message})", key="check", table=definition.name) from error
    if broken:
        raise ConstraintViolation(failed, key="check", table=definition.name, expression=check.expression)


def check_keys(
    definition: TableDefinition, rows: Rows, sandbox: Sandbox, *, written: Iterable[pa.RecordBatch] | None = None
) -> None:
    """Refuse rows of which two have the same key; `written` are those of them that are new, None for all."""
    batches = None if written is None else list(written)
    for key in definition.keys:
        new = None if batches is None else pa.Table.from_batches(batches, rows.schema).select(list(key.columns))
        duplicate = _duplicate(key, rows.table(key.columns), new, sandbox)
        if duplicate is not None:
            raise ConstraintViolation(
                f'Duplicate key "{duplicate}" violates {key.kind} constraint on table {definition.name} '
                f"({', '.join(key.columns)})",
                key=key.kind.replace(" ", "_"),
                table=definition.name,
                columns=", ".join(key.columns),
            )


def _duplicate(key: Key, rows: pa.Table, new: pa.Table | None, sandbox: Sandbox) -> str | None:
    """A key that occurs twice, as text. DuckDB compares, so that equal means here what it means to the client."""
    names = ", ".join(map(identifier, key.columns))
    shown = " || ', ' || ".join(f"{text_literal(name + ': ')} || {identifier(name)}::VARCHAR" for name in key.columns)
    present = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in key.columns)
    touched = "" if new is None else f"SEMI JOIN new USING ({names})"
    sql = (
        f"SELECT {shown} FROM (SELECT {names} FROM kept {touched} WHERE {present})"  # noqa: S608  (quoted above)
        f" GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
    )
    found = sandbox.query(sql, kept=rows, **({} if new is None else {"new": new}))
    return str(found.column(0)[0].as_py()) if found.num_rows else None
