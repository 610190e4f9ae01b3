"""Views as Iceberg clients see them: metadata with versions, schemas and SQL in several dialects.

The record of a view is the same for all doors. A change over Iceberg REST also stores the view's Iceberg metadata in it, and
writes it as a file. Other doors know nothing of that: if the SQL in the record is not that of the metadata's current version,
it was changed there, and the metadata gets a further version when it is read. A view that was created elsewhere has metadata
that follows from its record, and no file. Columns are an Iceberg schema for Iceberg clients, and have DuckDB's types in the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.errors import AlreadyExists, Contention, NotFound, SkiwayError
from skiway.formats import location as at
from skiway.formats.iceberg.metadata import commit_failed, version_of
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed import locations
from skiway.metastore.managed.commits import LOCK_TIMEOUT_S
from skiway.metastore.managed.locations import check_approved, check_properties, folder_of, is_in_namespace
from skiway.metastore.managed.states import undoing
from skiway.metastore.managed.tables import fields_of_new, require_addressable, required_place
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE, VIEW
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.resources import hierarchy, views
from skiway.metastore.resources.hierarchy import full_path, writable_id, writer
from skiway.metastore.resources.view_dialects import DUCKDB, is_translated, tables_in, translations
from skiway.metastore.resources.views import query_digest, set_definer
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.view.metadata import ViewMetadata, ViewVersion

    from skiway.formats.iceberg.view_metadata import ViewUpdate

COMMENT: Final = "comment"

log = logging.getLogger("skiway.metastore")


@dataclass(frozen=True, slots=True)
class IcebergView:
    """A view in one state. The file at `metadata_location` exists if the last change came over Iceberg REST."""

    view: v1.View
    metadata: ViewMetadata
    metadata_location: str


def has_columns(view: v1.View) -> bool:
    """Whether the columns of a view are known, which Iceberg clients need."""
    return bool(view.iceberg_metadata or view.output_columns)


def load_view(realm: Realm, warehouse: Warehouse, view: v1.View) -> IcebergView:
    """A view as Iceberg clients see it."""
    from skiway.formats.iceberg.view_metadata import parsed_view, view_json, with_version

    stored = parsed_view(view.iceberg_metadata, of=f"view {view.display_name}") if view.iceberg_metadata else None
    if stored is None:
        metadata = _derived(realm, warehouse, view)
    elif _definitions(stored) != list(view.sql_definitions):
        derived = _derived(realm, warehouse, view, before=stored)
        replaced = derived.versions[0].model_copy(update={"summary": {"operation": "replace"}})
        metadata = with_version(stored, derived.schemas[0], replaced)
    else:
        metadata = stored
    metadata = metadata.model_copy(update={"properties": _properties(view)})
    if metadata == stored:
        return IcebergView(view, metadata, view.metadata_location)
    name = UUID(bytes=sha256(view_json(metadata).encode()).digest()[:16])
    return IcebergView(view, metadata, f"{_folder(metadata)}/{_next_number(view):05d}-{name}.metadata.json")


def create_view(
    realm: Realm,
    warehouse: Warehouse,
    *,
    namespace_id: v1.ResourceId,
    name: str,
    schema: Schema,
    version: ViewVersion,
    properties: Mapping[str, str],
    location: str | None = None,
) -> IcebergView:
    """Create a view. `location` is as for a table: one that the operator approved for the catalog, or a suggestion."""
    from skiway.formats.iceberg.view_metadata import new_view

    place = required_place(realm, namespace_id)
    view_id = realm.ids()
    if not location or is_in_namespace(realm, warehouse, place.resource_id.id, location):
        location = folder_of(realm, warehouse, view_id)
    metadata = new_view(
        view_uuid=str(uuid4()), location=location, schema=schema, version=version, properties=properties
    )
    return _created(realm, warehouse, v1.View(**fields_of_new(realm, place, view_id, v1.RK_VIEW, name)), metadata)


def register_view(
    realm: Realm, warehouse: Warehouse, *, namespace_id: v1.ResourceId, name: str, metadata_location: str
) -> IcebergView:
    """Create a view from a metadata file: of a dropped view, or in a location that the operator approved."""
    from skiway.formats.iceberg.metadata_files import metadata_text
    from skiway.formats.iceberg.view_metadata import parsed_view

    place = required_place(realm, namespace_id)
    view_id = _dropped_id(realm, warehouse, metadata_location) or realm.ids()
    folder = _checked_folder(realm, warehouse, place.catalog_id, view_id, metadata_location.rpartition("/")[0])
    text = metadata_text(warehouse.files(folder), metadata_location)
    metadata = parsed_view(text, of=f"file {metadata_location}")
    return _created(
        realm,
        warehouse,
        v1.View(**fields_of_new(realm, place, view_id, v1.RK_VIEW, name)),
        metadata,
        existing=metadata_location,
    )


def commit_view(
    realm: Realm,
    warehouse: Warehouse,
    view_id: v1.ResourceId,
    updates: Sequence[ViewUpdate],
    *,
    required_uuid: str | None = None,
) -> IcebergView:
    """Apply updates to the current state of a view, which must have the required uuid."""
    from skiway.formats.iceberg.view_metadata import updated_view

    key = keys.view(realm.account_id, writable_id(realm, view_id, v1.RK_VIEW, field="view_id"))

    def attempt() -> IcebergView:
        current = realm.all(VIEW).require(key, name=view_id.id)
        realm.require("view.write", current.value)
        base = load_view(realm, warehouse, current.value)
        if required_uuid is not None and required_uuid.lower() != base.metadata.view_uuid.lower():
            raise commit_failed(f"view UUID does not match: expected {required_uuid} != {base.metadata.view_uuid}")
        chosen = locations.without_suggestions(realm, warehouse, current.value.namespace_id.id, updates)
        now_ms, own = int(realm.clock().timestamp() * 1000), set(_queries(current.value))
        metadata = updated_view(base.metadata, chosen, now_ms=now_ms, dialects=own)
        if metadata == base.metadata:
            return base
        desired = copied(current.value)
        desired.updated_at.CopyFrom(realm.now())

        def publish() -> Stored[v1.View]:
            is_other = query_digest(desired) != query_digest(current.value)
            if is_other or _definitions(metadata) != _definitions(base.metadata):
                set_definer(realm, desired)  # its query runs with the rights of its last editor
            try:
                return writer(realm, VIEW).update(current, desired)
            except SkiwayError as error:
                if error.key != "version.mismatch":
                    raise
                raise Contention(error.message, key="store.contended") from error

        return _published(realm, warehouse, desired, metadata, publish, replaces=current.value.metadata_location)

    with warehouse.lock(
        folder_of(realm, warehouse, view_id.id), timeout_s=LOCK_TIMEOUT_S
    ):  # so that few races are lost
        return retrying(attempt)


def drop_view(realm: Realm, warehouse: Warehouse, view: v1.View) -> None:
    """Delete a view and, unless its property `gc.enabled` is false, its metadata file."""
    views.delete(realm, v1.DeleteViewRequest(view_id=view.resource_id))
    if view.metadata_location and view.properties.get("gc.enabled", "true").lower() != "false":
        _remove(warehouse, view.metadata_location)


def rename_view(realm: Realm, view_id: v1.ResourceId, *, name: str, namespace_id: v1.ResourceId) -> v1.View:
    """Rename a view, and move it to another namespace of a managed catalog."""
    require_addressable(name)
    place = required_place(realm, namespace_id)
    spec = v1.ViewSpec(display_name=name, catalog_id=place.catalog_id, namespace_id=place.resource_id)
    request = v1.UpdateViewRequest(view_id=view_id, spec=spec)
    request.update_mask.paths.extend(["display_name", "catalog_id", "namespace_id"])
    return views.update(realm, request).view


# --- records ----------------------------------------------------------------------------------------------------------


def _created(
    realm: Realm, warehouse: Warehouse, view: v1.View, metadata: ViewMetadata, *, existing: str = ""
) -> IcebergView:
    def attempt() -> IcebergView:
        checks = hierarchy.entering(realm, view)

        def publish() -> Stored[v1.View]:
            set_definer(realm, view)
            return writer(realm, VIEW).create(view, also=lambda _: checks)

        return _published(realm, warehouse, view, metadata, publish, existing=existing)

    return retrying(attempt)


def _published(
    realm: Realm,
    warehouse: Warehouse,
    view: v1.View,
    metadata: ViewMetadata,
    publish: Callable[[], Stored[v1.View]],
    *,
    replaces: str = "",
    existing: str = "",
) -> IcebergView:
    """Write the metadata as a file, unless it exists, and store the record; then delete the file that it replaces."""
    from skiway.formats.iceberg.view_metadata import view_json

    view_id = view.resource_id.id
    folder = _checked_folder(realm, warehouse, view.catalog_id, view_id, metadata.location)
    check_properties(metadata.properties, warehouse.files(folder), metadata.location)
    written = existing or f"{_folder(metadata)}/{_next_number(view):05d}-{uuid4()}.metadata.json"
    if not existing:
        locations.claim(realm, view_id)
        warehouse.files(folder).write(written, view_json(metadata).encode())
    _fill(view, metadata, written)
    with undoing(lambda: _remove(warehouse, written), when=not existing):
        stored = publish()
    if replaces and replaces != written:
        _remove(warehouse, replaces)
    return IcebergView(stored.value, metadata, written)


def _queries(view: v1.View) -> dict[str, str]:
    """The SQL of a view by dialect."""
    return {definition.dialect: definition.sql for definition in view.sql_definitions}


def _fill(view: v1.View, metadata: ViewMetadata, location: str) -> None:
    """Set the fields of the record that follow from its metadata."""
    from skiway.formats.iceberg.view_metadata import view_json

    version = _current(metadata)
    definitions = _definitions(metadata)
    before = _queries(view)
    view.iceberg_metadata, view.metadata_location = view_json(metadata), location
    del view.sql_definitions[:]
    view.sql_definitions.extend(definitions)
    view.properties.clear()
    view.properties.update(metadata.properties)
    view.description = metadata.properties.get(COMMENT, "")
    if before and before.items() <= _queries(view).items():
        if is_translated(definitions) and not _has_columns_of(view, _schema(metadata)):
            _set_columns(view, _schema(metadata))
        return
    view.creation_search_path[:] = version.default_namespace
    if is_translated(definitions):
        _set_columns(view, _schema(metadata))
    else:
        del view.output_columns[:]  # those of the query for DuckDB, which determines them when it is read
    del view.base_relations[:]
    read = tables_in(
        view.sql_definitions[0], namespace=version.default_namespace, catalogs={version.default_catalog or ""}
    )
    view.base_relations.extend(v1.NameRef(path=path, name=name) for *path, name in read)


def _has_columns_of(view: v1.View, schema: Schema) -> bool:
    """Whether the record has the columns of the schema, possibly with types that Iceberg lacks."""
    own = iceberg_columns(view.output_columns)
    return [(field.name, field.field_type) for field in own.fields] == [
        (field.name, field.field_type) for field in schema.fields
    ]


def _set_columns(view: v1.View, schema: Schema) -> None:
    """Declare the columns of a view, which is translated for DuckDB: names and types of the translation can differ."""
    del view.output_columns[:]
    view.output_columns.extend(duckdb_columns(schema))


def _derived(realm: Realm, warehouse: Warehouse, view: v1.View, *, before: ViewMetadata | None = None) -> ViewMetadata:
    """The metadata that follows from the record, with one version. Columns that it does not have are as `before`."""
    from pyiceberg.view.metadata import ViewVersion

    from skiway.formats.iceberg.view_metadata import new_view

    if not view.output_columns and before is None:
        raise NotFound(
            f"View {view.display_name} cannot be read by Iceberg clients, because its columns are not known: create it again "
            "with create_view in DuckDB, or over Iceberg REST",
            key="view.without_columns",
        )
    namespace = hierarchy.namespace(realm, view.namespace_id).value
    catalog = hierarchy.catalog(realm, view.catalog_id).value.display_name
    account, view_id = realm.account_id, view.resource_id.id
    version: dict[str, Any] = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": view.updated_at.ToMilliseconds(),
        "summary": {"operation": "create"},
        "representations": _representations(view, full_path(namespace), catalog),
        "default-namespace": list(full_path(namespace)),
    }
    return new_view(
        view_uuid=str(uuid5(NAMESPACE_URL, f"skiway:{account}/{view_id}")),
        location=folder_of(realm, warehouse, view_id),
        schema=iceberg_columns(view.output_columns) if view.output_columns or before is None else _schema(before),
        version=ViewVersion.model_validate(version),
        properties=_properties(view),
    )


def _representations(view: v1.View, namespace: Sequence[str], catalog: str) -> list[dict[str, str]]:
    """The SQL in all dialects of the view; if DuckDB's is the only one, also translations for Spark and Trino, if possible."""
    queries = _queries(view)
    if set(queries) == {DUCKDB}:
        queries |= translations(queries[DUCKDB], namespace=namespace, catalog=catalog)
    return [{"type": "sql", "dialect": dialect, "sql": sql} for dialect, sql in queries.items()]


def _properties(view: v1.View) -> dict[str, str]:
    shown = {name: value for name, value in view.properties.items() if name != COMMENT}
    return {**shown, COMMENT: view.description} if view.description else shown


def _definitions(metadata: ViewMetadata) -> list[v1.ViewSql]:
    found = (representation.root for representation in _current(metadata).representations)
    return [v1.ViewSql(sql=each.sql, dialect=each.dialect.strip().lower()) for each in found]


def _schema(metadata: ViewMetadata) -> Schema:
    return next(schema for schema in metadata.schemas if schema.schema_id == _current(metadata).schema_id)


def _current(metadata: ViewMetadata) -> ViewVersion:
    return next(version for version in metadata.versions if version.version_id == metadata.current_version_id)


# --- files ------------------------------------------------------------------------------------------------------------


def _folder(metadata: ViewMetadata) -> str:
    return metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata").rstrip("/")


def _next_number(view: v1.View) -> int:
    return version_of(view.metadata_location) + 1


def _checked_folder(realm: Realm, warehouse: Warehouse, catalog_id: v1.ResourceId, view_id: str, folder: str) -> str:
    """Return the folder if the view may have files there: in its own folder, or where the operator approved it."""
    own = at(folder_of(realm, warehouse, view_id))
    try:
        is_own = at(folder).is_within(own)
    except SkiwayError:
        is_own = False
    if is_own:
        return str(folder_of(realm, warehouse, view_id))
    check_approved(realm, warehouse, hierarchy.catalog(realm, catalog_id).value, folder)
    return folder


def _dropped_id(realm: Realm, warehouse: Warehouse, metadata_location: str) -> str | None:
    """The id of a dropped view of the account in whose folder a metadata file is; None if it is elsewhere."""
    try:
        found = locations.id_at(realm, warehouse, at(metadata_location))
    except SkiwayError:
        return None
    everything = Realm(realm.stores, realm.account_id)
    if found is not None and (
        everything.all(TABLE).find(keys.table(realm.account_id, found)) is not None
        or everything.all(VIEW).find(keys.view(realm.account_id, found)) is not None
    ):
        raise AlreadyExists(
            f"metadata {metadata_location!r} belongs to a table or view that exists: it cannot be registered again",
            key="location.taken",
            location=metadata_location,
        )
    return found


def _remove(warehouse: Warehouse, metadata_location: str) -> None:
    """Delete a metadata file that is no longer used. The change is done, so a failure is only logged."""
    folder = metadata_location.rpartition("/")[0]
    try:
        files = warehouse.files(folder)
        files.remove([metadata_location])
        files.remove_folders(at(folder))
    except SkiwayError:
        log.warning("the metadata file %s of a view could not be deleted", metadata_location, exc_info=True)


_PRIMITIVES: Final = {
    exp.DataType.Type[name]: primitive
    for primitive, names in {
        "boolean": "BOOLEAN",
        "int": "TINYINT UTINYINT SMALLINT USMALLINT INT",
        "long": "UINT BIGINT",
        "decimal(20, 0)": "UBIGINT",
        "decimal(38, 0)": "INT128 UINT128",
        "float": "FLOAT",
        "double": "DOUBLE",
        "date": "DATE",
        "time": "TIME",
        "timestamp": "TIMESTAMP TIMESTAMPNTZ TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS",
        "timestamptz": "TIMESTAMPTZ",
        "uuid": "UUID",
        "binary": "VARBINARY BLOB",
    }.items()
    for name in names.split()
}
"""The types of Iceberg, by those of DuckDB."""


def iceberg_columns(columns: Sequence[v1.SchemaColumn]) -> Schema:
    """The columns of a view, which have DuckDB's types, as an Iceberg schema. Types that Iceberg lacks become strings."""
    from pyiceberg.schema import Schema

    numbers = count(1)
    fields = [_field(next(numbers), column.name, _parsed_type(column.logical_type), numbers) for column in columns]
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})


def _parsed_type(text: str) -> exp.DataType | None:
    try:
        return exp.DataType.build(text, dialect=DUCKDB)
    except (SqlglotError, ValueError):
        return None


def _field(number: int, name: str, of: exp.DataType | None, numbers: count[int]) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": _type(of, numbers)}


def _type(of: exp.DataType | None, numbers: count[int]) -> Any:
    kinds, kind = exp.DataType.Type, None if of is None else of.this
    inner = [] if of is None else list(of.expressions)
    if kind in (kinds.LIST, kinds.ARRAY) and inner:
        element = {"element-id": next(numbers), "element-required": False, "element": _type(inner[0], numbers)}
        return {"type": "list", **element}
    if kind == kinds.MAP and len(inner) == 2:
        ids = {"key-id": next(numbers), "value-id": next(numbers)}
        types = {"key": _type(inner[0], numbers), "value": _type(inner[1], numbers)}
        return {"type": "map", **ids, **types, "value-required": False}
    if kind == kinds.STRUCT and inner and all(isinstance(each, exp.ColumnDef) for each in inner):
        own = [next(numbers) for _ in inner]
        fields = [_field(number, each.name, each.kind, numbers) for number, each in zip(own, inner, strict=True)]
        return {"type": "struct", "fields": fields}
    if kind == kinds.DECIMAL:
        precision, scale = (
            [*(int(each.name) for each in inner), 18, 3][:2] if len(inner) != 1 else (int(inner[0].name), 0)
        )
        return f"decimal({precision}, {scale})"
    return "string" if kind is None else _PRIMITIVES.get(kind, "string")


# --- DuckDB's types ---------------------------------------------------------------------------------------------------

_DUCKDB: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz_ns": "TIMESTAMP WITH TIME ZONE",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


def duckdb_columns(schema: Schema) -> list[v1.SchemaColumn]:
    """The columns of an Iceberg schema with DuckDB's types; none if DuckDB lacks one of the types."""
    types = [_duckdb_type(field.field_type) for field in schema.fields]
    return [
        v1.SchemaColumn(name=field.name, logical_type=kind)
        for field, kind in zip(schema.fields, types, strict=True)
        if kind is not None and None not in types
    ]


def _duckdb_type(of: Any) -> str | None:
    from pyiceberg.types import DecimalType, FixedType, ListType, MapType, StructType

    match of:
        case ListType():
            element = _duckdb_type(of.element_type)
            return None if element is None else f"{element}[]"
        case MapType():
            key, value = _duckdb_type(of.key_type), _duckdb_type(of.value_type)
            return None if key is None or value is None else f"MAP({key}, {value})"
        case StructType():
            kinds = [_duckdb_type(field.field_type) for field in of.fields]
            names = ['"' + field.name.replace('"', '""') + '"' for field in of.fields]
            members = [f"{name} {kind}" for name, kind in zip(names, kinds, strict=True)]
            return None if not members or None in kinds else f"STRUCT({', '.join(members)})"
        case DecimalType():
            return f"DECIMAL({of.precision},{of.scale})"
        case FixedType():
            return "BLOB"
    return _DUCKDB.get(str(of))
