"""Validation of connectors: source, destination and policy, the columns to profile, and how tables are copied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import TableSchema, element_leaves, field_id, leaves
from skiway.metastore.connectors.credentials import refuse_secrets_in, scheme
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.names import dotted, exact_path, exact_text, folded, normal_path, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import catalogs, hierarchy, tables
from skiway.metastore.resources.hierarchy import find_path, full_path, is_managed
from skiway.model import v1
from skiway.security.source_access import SourceAccess, location
from skiway.security.source_access.connections import airport_address, metastore_addresses
from skiway.security.source_access.databases import POSTGRESQL, SQLITE, check_named_database, sqlite_file

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
    expect: str = ""


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
        own.expect or copy.expect,
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
        if any(not name.strip() for name in names):
            raise failure(InvalidArgument, "field", field=_field(field, table))
    if len({column.casefold() for column in copy.key_columns}) < len(copy.key_columns):
        raise invalid_field(_field("key_columns", table), ", ".join(copy.key_columns), "name each column once")
    if copy.expect:
        from skiway.metastore.pipelines.models.declarations import listed_expectations

        listed_expectations(_field("expect", table), copy.expect)


def _check_together(connector: v1.Connector, table: str) -> None:
    """Raise unless the settings for a table, or for all others, make sense together."""
    copy = connector.copy
    own = copy.tables[table] if table else copy
    if not (own.mode or copy.mode):
        raise invalid_field(_field("mode", table), "none", "use COM_APPEND, COM_UPSERT or COM_REPLACE")
    rules = rules_for(copy, *([table] if table else []))
    if copy.changes:
        if connector.kind != v1.CK_JDBC or not connector.uri.startswith("postgresql:"):
            raise invalid_field(
                "copy.changes", "true", "changes are copied from PostgreSQL: use CK_JDBC and its address"
            )
        if own is not copy and own.changes:
            raise invalid_field(_field("changes", table), "true", "set it for all tables of the connector")
        if rules.mode == CopyMode.REPLACE or rules.cursor or rules.read_partitions > 1:
            wanted = "use COM_APPEND or COM_UPSERT, without cursor_column and read_partitions"
            raise invalid_field("copy.changes", "true", wanted)
    elif own.changes:
        raise invalid_field(_field("changes", table), "true", "set it for all tables of the connector")
    if rules.mode == CopyMode.UPSERT and not rules.keys and not copy.changes:
        raise invalid_field(_field("key_columns", table), "none", "name the columns that identify a row")
    if rules.mode != CopyMode.UPSERT and own.key_columns:
        raise invalid_field(_field("key_columns", table), ", ".join(own.key_columns), "they are only for COM_UPSERT")
    if connector.kind == v1.CK_AIRPORT and rules.mode != CopyMode.REPLACE:
        wanted = "an Airport server does not say which rows have changed; use COM_REPLACE"
        raise invalid_field(_field("mode", table), v1.CopyMode.Name(own.mode or copy.mode), wanted)
    if connector.kind == v1.CK_JDBC and rules.mode != CopyMode.REPLACE and not rules.cursor and not copy.changes:
        wanted = "name a column that grows with every new or changed row, or use COM_REPLACE"
        raise invalid_field(_field("cursor_column", table), "none", wanted)
    if own.cursor_column and (connector.kind != v1.CK_JDBC or rules.mode == CopyMode.REPLACE):
        wanted = "it is only for databases, with COM_APPEND or COM_UPSERT"
        raise invalid_field(_field("cursor_column", table), own.cursor_column, wanted)


def _field(name: str, table: str) -> str:
    return f"copy.tables.{table}.{name}" if table else f"copy.{name}"


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Columns by dotted name, or `#` and id. A struct includes all of its members.

    A column is chosen if it is in each of `includes` and not in `exclude`. Columns that a table does not have are
    ignored, because other tables of the connector may have them.
    """

    includes: tuple[frozenset[str], ...] = ()
    exclude: frozenset[str] = frozenset()

    def of(self, schema: TableSchema) -> TableSchema:
        """The schema with only the chosen columns."""
        if not self.includes and not self.exclude:
            return schema
        kept = filter(None, (self._kept(each, "", self.includes) for each in schema.arrow))
        return TableSchema(schema.id, pa.schema(kept, metadata=schema.arrow.metadata), schema.json)

    def left_out(self, schema: TableSchema) -> frozenset[int]:
        """The ids of the columns that are not chosen."""
        return _ids(schema) - _ids(self.of(schema))

    def _kept(self, field: pa.Field, above: str, missing: tuple[frozenset[str], ...]) -> pa.Field | None:
        """The chosen part of a field. `missing` are the includes that none of its parents is in."""
        path = f"{above}{field.name}"
        names = {path, f"#{field_id(field)}"}
        if names & self.exclude:
            return None
        missing = tuple(include for include in missing if not names & include)
        if not pa.types.is_struct(field.type):
            return None if missing else field
        inner = [kept for each in field.type.fields if (kept := self._kept(each, f"{path}.", missing)) is not None]
        return field.with_type(pa.struct(inner)) if inner else None


EVERY_COLUMN = ColumnChoice()


def chosen_columns(source: v1.ConnectorSource, asked: Iterable[str] = ()) -> ColumnChoice:
    """The columns that a connector chooses, restricted to those of a request; all of them by default."""
    includes = (frozenset(source.columns), frozenset(asked))
    return ColumnChoice(tuple(filter(None, includes)), frozenset(source.exclude_columns))


def _ids(schema: TableSchema) -> frozenset[int]:
    return frozenset(leaf.id for leaf in (*leaves(schema.arrow), *element_leaves(schema.arrow)))


# --- validation -------------------------------------------------------------------------------------------------------


COLUMN_ID = re.compile(r"#[0-9]+")
DIRECTORY_SOURCES = (("iceberg.source", "filesystem"), ("delta.source", "filesystem"))
DESTINATION_PAIRS = (
    ("catalog_id", "catalog_display_name"),
    ("namespace_id", "namespace"),
    ("table_id", "table_display_name"),
)
"""Each part of a destination can be given by id or by name."""


def check(connector: v1.Connector, before: v1.Connector | None = None) -> None:
    """Raise unless the connector, which was as in `before`, is valid by itself, and normalize its names."""
    if connector.kind not in v1.ConnectorKind.values() or connector.kind == v1.CK_UNSPECIFIED:
        wanted = f"use {', '.join(map(v1.ConnectorKind.Name, v1.ConnectorKind.values()[1:]))}"
        raise invalid_field("kind", str(connector.kind), wanted)
    _check_uri(connector)
    refuse_secrets_in(connector, before)
    connector.auth.scheme = scheme(connector.auth.scheme)
    _check_source(connector)
    _check_tables(connector.destination)
    _check_policy(connector.policy)
    check_copy(connector)


def check_access(connector: v1.Connector, access: SourceAccess) -> None:
    """Raise PermissionDenied if the source may not be opened, as far as its definition tells.

    Names are not resolved here, and what a catalog refers to is not known; both are checked when the source is opened.
    """
    if connector.kind == v1.CK_JDBC:
        check_named_database(connector.uri, access)
        return
    if connector.kind == v1.CK_AIRPORT:
        access.check_named(airport_address(connector.uri).url)
        return
    own = connector.uri
    if connector.kind == v1.CK_HIVE:
        for address in metastore_addresses(connector.uri):
            access.check_named(address.url)
        own = ""
    allowed = connector.properties.get("allowed-locations", "").split(",")
    for text in filter(None, map(str.strip, (own, connector.properties.get("warehouse", ""), *allowed))):
        if text.startswith(("http:", "https:")):
            access.check_named(text)
        elif text.startswith(SQLITE):
            access.check(sqlite_file(text))
        elif "/" in text and not text.startswith(POSTGRESQL):
            access.check(location(text))
    if endpoint := connector.properties.get("s3.endpoint"):
        access.check_named(endpoint)


def check_columns(columns: Iterable[str], *, field: str) -> None:
    """Raise unless each column is a name, or `#` and a number."""
    for column in columns:
        if not column.strip() or (column.startswith("#") and not COLUMN_ID.fullmatch(column)):
            raise invalid_field(field, repr(column), "use the column's name, or # and its id")


def resolve_destination(realm: Realm, destination: v1.ConnectorDestination, *, copied: bool = False) -> None:
    """Replace the names of existing destinations by ids, because names may change.

    If both are given they must agree. Rows can be `copied` only to a catalog of managed tables.
    """
    catalog = _destination_catalog(realm, destination)
    if copied and not is_managed(catalog):
        raise failure(PreconditionFailed, "connector.copy.catalog", display_name=catalog.display_name)
    destination.catalog_id.CopyFrom(catalog.resource_id)
    destination.ClearField("catalog_display_name")
    namespace_id = _destination_namespace(realm, destination, catalog)
    if namespace_id is not None:
        destination.namespace_id.CopyFrom(namespace_id)
        destination.ClearField("namespace")
    table_id = _destination_table(realm, destination, catalog)
    if table_id is not None:
        destination.table_id.CopyFrom(table_id)
        destination.ClearField("table_display_name")


def _check_uri(connector: v1.Connector) -> None:
    connector.uri = connector.uri.strip()
    if not connector.uri:
        raise failure(InvalidArgument, "field", field="uri")
    try:
        urlsplit(connector.uri)
    except ValueError:
        raise invalid_field("uri", "not a URI", "use a path or a URI") from None


def _check_source(connector: v1.Connector) -> None:
    source = connector.source
    source.namespace.segments[:] = normal_path(source.namespace.segments, field="source.namespace")
    if not source.namespace.segments and not _may_mean_all(connector):
        raise failure(InvalidArgument, "connector.missing.source.namespace", field="source.namespace")
    if source.HasField("table"):
        if not source.table.strip():
            raise failure(InvalidArgument, "field", field="source.table")
        if source.include_tables or source.exclude_tables:
            chosen = "include_tables" if source.include_tables else "exclude_tables"
            raise failure(InvalidArgument, "selector.ambiguous", first="source.table", second=f"source.{chosen}")
    for pattern in (*source.include_tables, *source.exclude_tables):
        if not pattern.strip():
            raise failure(InvalidArgument, "field", field="source.include_tables or source.exclude_tables")
    check_columns(source.columns, field="source.columns")
    check_columns(source.exclude_columns, field="source.exclude_columns")


def _check_tables(destination: v1.ConnectorDestination) -> None:
    """Raise unless each table of `destination.tables` appears once and has a destination."""
    met = set[str]()
    for each in destination.tables:
        field = "destination.tables"
        each.table_display_name = exact_text(each.table_display_name, field=f"{field}.table_display_name")
        each.namespace.segments[:] = exact_path(each.namespace.segments, field=f"{field}.namespace")
        if not each.source.strip():
            raise failure(InvalidArgument, "field", field=f"{field}.source")
        if each.source in met:
            raise invalid_field(field, f"{each.source} twice", "list each table only once")
        if not each.table_display_name and not each.namespace.segments:
            raise invalid_field(field, "without a destination", f"set a name or a namespace for {each.source}")
        met.add(each.source)


def _may_mean_all(connector: v1.Connector) -> bool:
    """Whether the source is a directory, so that a missing namespace means the whole directory."""
    chosen = connector.properties
    # Not `in chosen.items()`, which adds a missing key to the record.
    return connector.kind in (v1.CK_PARQUET, v1.CK_CSV, v1.CK_JSON, v1.CK_JDBC) or any(
        chosen.get(key) == value for key, value in DIRECTORY_SOURCES
    )


def _check_policy(policy: v1.ConnectorPolicy) -> None:
    for name, value in (
        ("policy.interval", policy.interval.ToNanoseconds()),
        ("policy.max_parallel", policy.max_parallel),
        ("policy.latest_n", policy.latest_n),
    ):
        if value < 0:
            raise invalid_field(name, "negative", "use 0 or more")
    if policy.scope == v1.SNS_LATEST_N and policy.latest_n < 1:
        raise invalid_field("policy.latest_n", "0", "set the number of snapshots, or choose another policy.scope")


def _destination_catalog(realm: Realm, destination: v1.ConnectorDestination) -> v1.Catalog:
    name = normal_text(destination.catalog_display_name)
    if not destination.HasField("catalog_id") and not name:
        raise failure(InvalidArgument, "connector.missing.destination.catalog", field="destination")
    stored = catalogs.find(realm, name)
    named = None if stored is None else stored.value
    if name and named is None:
        raise failure(NotFound, "connector.destination.catalog.not.found", display_name=name)
    if not destination.HasField("catalog_id"):
        assert named is not None
        return named
    found = hierarchy.catalog(realm, destination.catalog_id, field="destination.catalog_id").value
    if named is not None and named.resource_id != found.resource_id:
        given = f"{found.display_name} ({found.resource_id.id})"
        raise failure(
            InvalidArgument,
            "connector.destination.catalog.mismatch",
            display_name=name,
            found=given,
            field="destination",
        )
    return found


def _destination_namespace(
    realm: Realm, destination: v1.ConnectorDestination, catalog: v1.Catalog
) -> v1.ResourceId | None:
    path = exact_path(destination.namespace.segments, field="destination.namespace")
    if destination.HasField("namespace_id"):
        found = hierarchy.namespace_in(realm, destination.namespace_id, catalog.resource_id).value
        if path and not _is_same(full_path(found), path, catalog):
            raise _disagreement("namespace", found.resource_id, dotted(path))
        return found.resource_id
    if not path:
        return None
    destination.namespace.segments[:] = path
    named = find_path(realm, catalog, path, damaged=True)
    return None if named is None else named.value.resource_id


def _is_same(stored: Sequence[str], given: Sequence[str], catalog: v1.Catalog) -> bool:
    """Whether two paths are the same in a catalog; in a managed one, case makes no difference."""
    return [*map(folded, stored)] == [*map(folded, given)] if is_managed(catalog) else tuple(stored) == tuple(given)


def _destination_table(realm: Realm, destination: v1.ConnectorDestination, catalog: v1.Catalog) -> v1.ResourceId | None:
    name = exact_text(destination.table_display_name, field="destination.table_display_name")
    destination.table_display_name = name
    if destination.HasField("table_id"):
        table = hierarchy.table(realm, destination.table_id, field="destination.table_id").value
        if name and not _is_same((table.display_name,), (name,), catalog):
            raise _disagreement("table", table.resource_id, name)
        if destination.HasField("namespace_id") and table.namespace_id.id != destination.namespace_id.id:
            raise _disagreement("table", table.resource_id, f"of namespace {destination.namespace_id.id}")
        return table.resource_id
    if not name or not destination.HasField("namespace_id"):
        return None
    named = tables.lookup(realm, catalog, destination.namespace_id.id, name)
    return None if named is None else named.resource_id


def _disagreement(resource: str, found: v1.ResourceId, name: str) -> InvalidArgument:
    return failure(
        InvalidArgument,
        "connector.destination.mismatch",
        field=f"destination.{resource}_id",
        resource=resource,
        id=found.id,
        name=name,
    )
