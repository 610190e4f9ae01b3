"""From which columns of its inputs each column of a derived table is computed, as far as its query shows it.

Conditions, joins and the keys of groups decide which rows there are. They are not part of the lineage of a column.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, to_node
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope
from sqlglot.schema import MappingSchema

from skiway.errors import NotFound
from skiway.formats import TableName
from skiway.metastore.pipelines.positions import PIPELINE
from skiway.metastore.pipelines.queries import Query
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import snapshots
from skiway.model import v1

__all__ = ["COLUMNS", "ColumnLineage", "column_lineage", "columns_by_source", "read_lineage", "stored_lineage"]

COLUMNS: Final = "skiway.pipeline.columns"
"""The property of a snapshot that has the lineage."""

MAX_BYTES: Final = 100_000
"""A longer lineage is not stored: the metadata of a table has it once for each snapshot."""

MAX_SNAPSHOTS: Final = 20
"""How many snapshots are searched for a lineage."""

ColumnLineage = Mapping[str, Mapping[str, Sequence[str]]]
"""Columns of sources, by the id of the source and by the column that is computed from them."""

log = logging.getLogger("skiway.pipelines")


def column_lineage(
    query: Query, inputs: Mapping[TableName, Sequence[str]], columns: Sequence[str]
) -> dict[str, dict[TableName, list[str]]]:
    """The columns of inputs that each column of the result depends on; empty if the query cannot be followed.

    `inputs` has the columns of each table that the query reads, and `columns` are those of its result, in order.
    """
    names = {f"t{number}": name for number, name in enumerate(inputs)}
    schema: dict[str, object] = {
        key: {column.lower(): "unknown" for column in inputs[name]} for key, name in names.items()
    }
    known = MappingSchema(schema, dialect="spark")
    try:
        tree = qualify(
            query.renamed({name: key for key, name in names.items()}),
            dialect="spark",
            schema=known,
            validate_qualify_columns=False,
            identify=False,
        )
        scope = build_scope(tree)
        if scope is None or not isinstance(tree, exp.Query) or len(tree.selects) != len(columns):
            return {}
        nodes = [to_node(number, scope, "spark", known, trim_selects=False) for number in range(len(columns))]
    except (SqlglotError, ValueError, KeyError, RecursionError) as error:
        log.info("the lineage of columns is not known: %s", error)
        return {}
    found: dict[str, dict[TableName, list[str]]] = {}
    for column, node in zip(columns, nodes, strict=True):
        for key, source in sorted(set(_sources(node))):
            spelled = next((each for each in inputs[names[key]] if each.lower() == source.lower()), None)
            if spelled is not None:
                found.setdefault(column, {}).setdefault(names[key], []).append(spelled)
    return found


def _sources(node: Node) -> Iterator[tuple[str, str]]:
    """The tables and columns at the ends of a graph."""
    for each in node.walk():
        if isinstance(each.expression, exp.Table) and not each.downstream:
            yield each.expression.name, each.name.rpartition(".")[2].strip("`")


def stored_lineage(
    found: Mapping[str, Mapping[TableName, Sequence[str]]], ids: Mapping[TableName, str]
) -> dict[str, str]:
    """The lineage as properties of a snapshot, with the ids of the tables."""
    named: dict[str, dict[str, set[str]]] = {}
    for column, sources in found.items():
        for name, columns in sources.items():
            named.setdefault(column, {}).setdefault(ids[name], set()).update(columns)
    listed = {column: {key: sorted(each) for key, each in sources.items()} for column, sources in named.items()}
    text = json.dumps(listed, separators=(",", ":"))
    return {COLUMNS: text} if listed and len(text) <= MAX_BYTES else {}


def columns_by_source(realm: Realm, table: v1.Table) -> dict[str, list[tuple[str, list[str]]]]:
    """The lineage of the rows that a table has now, by the ids of its sources; empty unless a pipeline has made it."""
    if PIPELINE not in table.properties:
        return {}
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for column, sources in read_lineage(_summary(realm, table.resource_id.id)).items():
        for source, columns in sources.items():
            found.setdefault(source, []).append((column, list(columns)))
    return found


def _summary(realm: Realm, table_id: str) -> Mapping[str, str]:
    """The summary of the newest snapshot with a lineage. Compaction and the like do not change it."""
    try:
        stored = snapshots.resolve(realm, table_id, v1.SnapshotRef(special=v1.SS_CURRENT))
        for _ in range(MAX_SNAPSHOTS):
            if COLUMNS in stored.value.summary:
                return stored.value.summary
            parent = v1.SnapshotRef(snapshot_id=stored.value.parent_snapshot_id)
            stored = snapshots.resolve(realm, table_id, parent)
    except NotFound:
        pass
    return {}


def read_lineage(summary: Mapping[str, str]) -> ColumnLineage:
    """The lineage in the summary of a snapshot; empty if there is none, or if it cannot be read."""
    try:
        found: ColumnLineage = json.loads(summary.get(COLUMNS, "{}"))
        return {
            column: {key: list(map(str, each)) for key, each in sources.items()} for column, sources in found.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
