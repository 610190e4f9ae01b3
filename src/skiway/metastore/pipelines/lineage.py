"""What a derived table was made from: its definition, the snapshots of its inputs, and the columns behind each column."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, to_node
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope
from sqlglot.schema import MappingSchema

from skiway.errors import NotFound
from skiway.formats import TableName
from skiway.formats.iceberg.metadata import history, summary_properties
from skiway.metastore.pipelines.spark_sql import Query
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import snapshots
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

PIPELINE: Final = "skiway.pipeline.id"
"""The property of a derived table that has the id of its pipeline."""

POSITION: Final = "skiway.pipeline.position"


@dataclass(frozen=True, slots=True)
class InputState:
    """The state of an input: the id of the table, its snapshot (0 for a table without any), and a digest of its columns."""

    table: str
    snapshot: int
    columns: str


@dataclass(frozen=True, slots=True)
class Position:
    """The definition that made the rows of a table, as a digest, and the inputs by name."""

    definition: str
    inputs: Mapping[str, InputState]

    @property
    def summary(self) -> dict[str, str]:
        """The position as properties of a snapshot."""
        inputs = {name: asdict(state) for name, state in sorted(self.inputs.items())}
        return {POSITION: json.dumps({"definition": self.definition, "inputs": inputs}, separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a table, and the snapshot that has it; both None if there is none.

    `is_changed` says that others have changed the rows since then.
    """

    value: Position | None = None
    snapshot_id: int | None = None
    is_changed: bool = False


def read_position(metadata: TableMetadata) -> StoredPosition:
    """The position of the rows that the table has now. A position that was lost or cannot be read is like none."""
    is_changed = False
    for snapshot in history(metadata):
        text = summary_properties(snapshot).get(POSITION)
        if text is not None:
            return StoredPosition(_parsed(text), snapshot.snapshot_id, is_changed)
        is_changed |= snapshot.summary is None or snapshot.summary.operation.value != "replace"
    return StoredPosition()


def _parsed(text: str) -> Position | None:
    try:
        found = json.loads(text)
        return Position(found["definition"], {name: InputState(**state) for name, state in found["inputs"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


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
