"""Tables: a name, a schema, where the data is, and properties, which tables also inherit. Their states are in `snapshots`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from skiway.config.fields import DURATION
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation import resources
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.names import STATISTICS_OFFER, check_properties, normal_text
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.updates import copy_fields
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import TABLES, purge_table, refuse_fields
from skiway.metastore.resources.snapshots import resolve
from skiway.model import v1


def create(realm: Realm, request: v1.CreateTableRequest) -> v1.CreateTableResponse:
    """Create a table without snapshots."""
    for field in ("catalog_id", "namespace_id", "schema_json") if request.HasField("spec") else ():
        if not request.spec.HasField(field):
            raise failure(InvalidArgument, "field", field=field)
    created: v1.CreateTableResponse = CALLS.create(realm, request)
    return created


def get(realm: Realm, request: v1.GetTableRequest) -> v1.GetTableResponse:
    """Return the table and its stored version; with the schema of a snapshot if the request names one."""
    table = hierarchy.table(realm, request.table_id)
    if request.HasField("snapshot"):
        then = resolve(realm, table.value.resource_id.id, request.snapshot)
        table.value.schema_json = then.value.schema_json
    return v1.GetTableResponse(table=_without_locations(realm, table.value), meta=table.meta)


def list_(realm: Realm, request: v1.ListTablesRequest) -> v1.ListTablesResponse:
    """List the tables of a namespace by name."""
    tables, page = TABLES.page(realm, request.namespace_id, request.page)
    return v1.ListTablesResponse(tables=[_without_locations(realm, table) for table in tables], page=page)


def _without_locations(realm: Realm, table: v1.Table) -> v1.Table:
    """The table without the locations of its files, if policies restrict the caller."""
    if realm.policies is None or table.damage or realm.policies.of(table) is None:
        return table
    shown = updates.copied(table)
    shown.ClearField("metadata_location")
    if shown.HasField("upstream"):
        shown.upstream.uri = ""
        shown.upstream.problem = problem_of(realm, table)
    return shown


find, lookup, find_any_case = TABLES.find, TABLES.lookup, TABLES.find_any_case
scan, count = TABLES.scan, TABLES.count


def problem_of(realm: Realm, table: v1.Table) -> str:
    """Why a mirrored table cannot be read; "" if it can.

    If policies restrict the caller, reasons that are about single files are not shown: they may contain locations and values.
    """
    problem = table.upstream.problem
    if not problem or realm.policies is None or table.damage or realm.policies.of(table) is None:
        return problem
    shown = problem.replace(f" at {table.upstream.uri!r}", "")
    return "the last synchronisation could not read it" if "/" in shown else shown


def _normal(realm: Realm, spec: v1.TableSpec, paths: Set[str]) -> None:
    if "upstream" in paths and any(path.startswith("upstream.") for path in paths):
        raise failure(InvalidArgument, "update.mask.upstream.mix.forbidden", field="update_mask")
    if "schema_json" in paths and spec.HasField("schema_json"):
        try:
            json.loads(spec.schema_json)
        except ValueError:
            found = "not JSON" if spec.schema_json.strip() else "blank"
            raise invalid_field("schema_json", found, "give the schema as JSON") from None
    if "properties" in paths:
        check_properties(spec.properties)
    hierarchy.check_parent_ids(realm, spec)


def _edit(_: Realm, table: v1.Table, spec: v1.TableSpec, paths: Set[str], required: Set[str]) -> None:
    if not table.HasField("upstream") and any(path.startswith("upstream.") for path in paths):
        raise failure(InvalidArgument, "upstream.missing.for.replacement", id=table.resource_id.id)
    copy_fields(table, spec, paths, required)


def _check(realm: Realm, table: v1.Table, _: v1.TableSpec, paths: Set[str]) -> None:
    refuse_fields(table, paths)
    if table.HasField("upstream") and any(path.startswith("upstream") for path in paths):
        _checked_upstream(realm, table.upstream)


def _checked_upstream(realm: Realm, upstream: v1.UpstreamRef) -> None:
    """Raise unless the reference is valid: it needs a URI, and its connector must exist.

    The table is read with the credentials of the connector, so a grant to write tables is not enough to set it.
    """
    realm.require_everywhere("connector.manage", what="the upstream of a table")
    if not upstream.uri.strip():
        raise failure(InvalidArgument, "upstream.uri.required", field="upstream.uri")
    if not all(map(normal_text, upstream.namespace_path)):
        raise failure(InvalidArgument, "path.segment.blank", field="upstream.namespace_path")
    if upstream.column_id_algorithm == v1.CID_UNKNOWN:
        raise failure(InvalidArgument, "upstream.algorithm.unknown", field="upstream.column_id_algorithm")
    if upstream.HasField("connector_id"):
        _check_connector(realm, upstream.connector_id)


def _check_connector(realm: Realm, given: v1.ResourceId) -> None:
    if given.kind not in (v1.RK_CONNECTOR, v1.RK_UNSPECIFIED) or not given.id.strip():
        raise failure(InvalidArgument, "upstream.connector.invalid", field="upstream.connector_id")
    connector_id = local_id(realm, given, v1.RK_CONNECTOR, field="upstream.connector_id")
    if realm.stores.pointers.get(keys.connector(realm.account_id, connector_id)) is None:
        raise failure(NotFound, "connector", resource="connector", id=connector_id)
    given.CopyFrom(resource_id(realm, connector_id, v1.RK_CONNECTOR))


CALLS: Final = TABLES.calls(resources.TABLE, check=_check, normal=_normal, edit=_edit, deleted=purge_table)
"""The calls for tables. A deleted one's snapshots and statistics become unreachable at once, and are deleted afterwards."""

update: Callable[[Realm, v1.UpdateTableRequest], v1.UpdateTableResponse] = CALLS.update
delete = CALLS.delete


def offers_statistics(relation: v1.Table | v1.View, inherited: Callable[[], str]) -> bool:
    """Whether clients are told to ask for the statistics of a table or view: if its property, or the `inherited` one, is `always`.

    With `auto`, they are not: DuckDB's client uses no row counts of listed tables, without which statistics do not make its plans
    better, and distinct counts make those of joins worse (`python -m bench tpch`).
    """
    return (relation.properties.get(STATISTICS_OFFER) or inherited()) == "always"


MAINTENANCE: Final = "maintenance."
"""The prefix of the properties that say what runs by itself."""


@dataclass(frozen=True, slots=True)
class InheritedProperties:
    """The properties of a table with a prefix: their names without it, each with its text and the object that sets it.

    A property with a wrong text raises `InvalidArgument`, which names that object.
    """

    prefix: str
    properties: Mapping[str, tuple[str, str]]

    def is_auto(self, name: str, *, default: bool = False) -> bool:
        """Whether a property is `auto` rather than `off`."""
        found = self.text(name, "auto" if default else "off")
        if found not in ("auto", "off"):
            raise self.invalid(name, "auto or off")
        return found == "auto"

    def source_of(self, name: str) -> str:
        """The object that sets a property; empty if none does."""
        return self.properties.get(name, ("", ""))[1]

    def text(self, name: str, default: str) -> str:
        """A property in lower case."""
        return self.properties.get(name, (default, ""))[0].strip().lower()

    def number(self, name: str, default: int) -> int:
        """A property that is a whole number."""
        found = self.text(name, str(default))
        if not found.isdecimal():
            raise self.invalid(name, "a number")
        return int(found)

    def share(self, name: str, default: float) -> float:
        """A property that is a number between 0 and 1."""
        try:
            found = float(self.text(name, str(default)))
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1:
            raise self.invalid(name, "a share between 0 and 1")
        return found

    def duration(self, name: str) -> timedelta | None:
        """A property that is a duration; None if it is not set."""
        if name not in self.properties:
            return None
        try:
            found: timedelta = DURATION.read(self.text(name, ""))
        except ValueError:
            raise self.invalid(name, DURATION.takes) from None
        return found

    def invalid(self, name: str, wanted: str) -> InvalidArgument:
        """The error about a property with a wrong text."""
        text, source = self.properties[name]
        return InvalidArgument(
            f"property {self.prefix}{name} of {source} is {text!r}, but must be {wanted}: change or remove it",
            key="property.invalid",
        )


def inherited(realm: Realm, table: v1.Table, prefix: str) -> Mapping[str, tuple[str, str]]:
    """The properties of a table that start with the prefix, with those that it inherits, as `InheritedProperties` has them."""
    found: dict[str, tuple[str, str]] = {}
    for source, properties in _levels(realm, table):
        for name, text in properties.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = text, source
    return found


def _levels(realm: Realm, table: v1.Table) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The catalog of a table, its namespaces from the outside, and the table, each with its properties."""
    catalog = hierarchy.catalog(realm, table.catalog_id).value
    yield f"catalog {catalog.display_name}", catalog.properties
    path = hierarchy.full_path(hierarchy.namespace(realm, table.namespace_id).value)
    for length in range(1, len(path) + 1):
        namespace = hierarchy.require_path(realm, catalog, path[:length]).value
        yield f"namespace {'.'.join(path[:length])}", namespace.properties
    yield f"table {table.display_name}", table.properties
