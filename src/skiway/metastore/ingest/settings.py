"""What a connector says about its copies, and the rules that follow from it for one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from skiway.errors import InvalidArgument
from skiway.metastore.records.errors import failure, invalid_field
from skiway.model import v1

__all__ = ["COPIED_ONLY", "ROWS_ONLY", "CopyMode", "CopyRules", "check_copy", "rules_for"]

ROWS_ONLY: Final = (v1.CK_JDBC, v1.CK_AIRPORT)
"""Sources without files, which the engine of copies opens."""

COPIED_ONLY: Final = (v1.CK_CSV, v1.CK_JSON, *ROWS_ONLY)
"""The kinds of sources that cannot be mirrored."""

MOST_READ_PARTITIONS: Final = 64


class CopyMode(StrEnum):
    """How copied rows get into a table."""

    APPEND = "append"
    UPSERT = "upsert"
    REPLACE = "replace"


_MODES: Final = {v1.COM_APPEND: CopyMode.APPEND, v1.COM_UPSERT: CopyMode.UPSERT, v1.COM_REPLACE: CopyMode.REPLACE}


@dataclass(frozen=True, slots=True)
class CopyRules:
    """How one table is copied. `follows` says whether its columns follow those of the source."""

    mode: CopyMode = CopyMode.APPEND
    keys: tuple[str, ...] = ()
    cursor: str = ""
    follows: bool = True
    partition_by: tuple[str, ...] = ()
    sort_by: str = ""
    read_partitions: int = 1


def rules_for(copy: v1.CopySettings, *names: str) -> CopyRules:
    """The rules for the table that is called one of `names` upstream; the first that has settings of its own counts."""
    own = next((copy.tables[name] for name in names if name in copy.tables), v1.CopySettings())
    changes = own.schema_changes or copy.schema_changes
    return CopyRules(
        _MODES[own.mode or copy.mode],
        tuple(own.key_columns or copy.key_columns),
        own.cursor_column or copy.cursor_column,
        changes != v1.SCH_REJECT,
        tuple(own.partition_by or copy.partition_by),
        own.sort_by or copy.sort_by,
        own.read_partitions or copy.read_partitions or 1,
    )


def check_copy(connector: v1.Connector) -> None:
    """Raise unless the settings of a copy are valid, and the connector has some if its source can only be copied."""
    if not connector.HasField("copy"):
        if connector.kind in COPIED_ONLY:
            kind = v1.ConnectorKind.Name(connector.kind).removeprefix("CK_").lower()
            raise failure(InvalidArgument, "connector.copy.required", field="copy", kind=kind)
        return
    for name, own in connector.copy.tables.items():
        if own.tables:
            raise invalid_field(
                f"copy.tables.{name}.tables", "not empty", "settings of a table have no tables themselves"
            )
    for name in ("", *connector.copy.tables):
        own = connector.copy.tables[name] if name else v1.CopySettings()
        _check_values(own if name else connector.copy, name)
        if not name and not connector.copy.mode and connector.copy.tables:
            continue  # each table may have a mode of its own
        _check_together(connector, name)


def _check_values(copy: v1.CopySettings, table: str) -> None:
    """Raise unless each value is possible on its own."""
    if copy.mode not in (*_MODES, v1.COM_UNSPECIFIED):
        raise invalid_field(_field("mode", table), str(copy.mode), "use COM_APPEND, COM_UPSERT or COM_REPLACE")
    if copy.schema_changes not in v1.SchemaChanges.values():
        raise invalid_field(_field("schema_changes", table), str(copy.schema_changes), "use SCH_FOLLOW or SCH_REJECT")
    if not 0 <= copy.read_partitions <= MOST_READ_PARTITIONS:
        wanted = f"use a number from 1 to {MOST_READ_PARTITIONS}"
        raise invalid_field(_field("read_partitions", table), str(copy.read_partitions), wanted)
    for field, names in (("key_columns", copy.key_columns), ("partition_by", copy.partition_by)):
        if any(not each.strip() for each in names):
            raise failure(InvalidArgument, "field", field=_field(field, table))
    if len({each.casefold() for each in copy.key_columns}) < len(copy.key_columns):
        raise invalid_field(_field("key_columns", table), ", ".join(copy.key_columns), "name each column once")


def _check_together(connector: v1.Connector, table: str) -> None:
    """Raise unless the settings for a table, or for all others, make sense together."""
    copy = connector.copy
    own = copy.tables[table] if table else copy
    if not (own.mode or copy.mode):
        raise invalid_field(_field("mode", table), "none", "use COM_APPEND, COM_UPSERT or COM_REPLACE")
    rules = rules_for(copy, *([table] if table else []))
    if rules.mode == CopyMode.UPSERT and not rules.keys:
        raise invalid_field(_field("key_columns", table), "none", "name the columns that identify a row")
    if rules.mode != CopyMode.UPSERT and own.key_columns:
        raise invalid_field(_field("key_columns", table), ", ".join(own.key_columns), "they are only for COM_UPSERT")
    if connector.kind == v1.CK_AIRPORT and rules.mode != CopyMode.REPLACE:
        wanted = "an Airport server does not say which rows have changed; use COM_REPLACE"
        raise invalid_field(_field("mode", table), v1.CopyMode.Name(own.mode or copy.mode), wanted)
    if connector.kind == v1.CK_JDBC and rules.mode != CopyMode.REPLACE and not rules.cursor:
        wanted = "name a column that grows with every new or changed row, or use COM_REPLACE"
        raise invalid_field(_field("cursor_column", table), "none", wanted)
    if own.cursor_column and (connector.kind != v1.CK_JDBC or rules.mode == CopyMode.REPLACE):
        wanted = "it is only for databases, with COM_APPEND or COM_UPSERT"
        raise invalid_field(_field("cursor_column", table), own.cursor_column, wanted)


def _field(name: str, table: str) -> str:
    return f"copy.tables.{table}.{name}" if table else f"copy.{name}"
