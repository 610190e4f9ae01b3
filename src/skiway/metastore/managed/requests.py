"""Tables that are created through the API of the metastore: without an upstream, they become managed tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skiway.errors import InvalidArgument
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.tables import create
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Claim, once
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources import hierarchy, tables
from skiway.metastore.resources.ownership import is_managed
from skiway.model import v1
from skiway.storage import Operation

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["create_requested"]


def create_requested(
    realm: Realm, request: v1.CreateTableRequest, *, warehouse: Warehouse | None = None
) -> v1.CreateTableResponse:
    """Create the table that the request describes.

    A table with columns and without an upstream, in a managed catalog, becomes a managed table. Any other is only a
    record: of the table that its upstream names, or of one whose columns are not known yet.
    """
    spec = request.spec
    if warehouse is None or not _is_complete(spec) or not _belongs_to_managed_catalog(realm, spec):
        return tables.create(realm, request)
    schema = _schema(spec.schema_json)
    if schema is None:
        return tables.create(realm, request)
    claim = Claim(realm, "CreateTable", request.idempotency.key, spec, v1.CreateTableResponse)

    def also(stored: Stored[v1.Table]) -> tuple[Operation, ...]:
        return claim.storing(v1.CreateTableResponse(table=stored.value, meta=stored.meta))

    def make() -> v1.CreateTableResponse:
        comment = {"comment": spec.description} if spec.description else {}
        made = create(
            realm,
            warehouse,
            namespace_id=spec.namespace_id,
            name=spec.display_name,
            schema=schema,
            properties={**spec.properties, **comment},
            also=also,
        )
        return v1.CreateTableResponse(table=made.table, meta=made.stored.meta)

    return once(claim, make)


def _is_complete(spec: v1.TableSpec) -> bool:
    """Does the spec have all fields of a managed table, and no upstream? What it lacks is reported like for any table."""
    has_place = spec.HasField("catalog_id") and spec.HasField("namespace_id")
    return has_place and spec.HasField("schema_json") and not spec.HasField("upstream")


def _belongs_to_managed_catalog(realm: Realm, spec: v1.TableSpec) -> bool:
    namespace = hierarchy.namespace(realm, spec.namespace_id).value
    if namespace.catalog_id.id != spec.catalog_id.id:
        return False  # which is reported like for any table
    return is_managed(hierarchy.catalog(realm, namespace.catalog_id).value)


def _schema(text: str) -> Schema | None:
    """The schema, or None if it has no columns."""
    from pyiceberg.exceptions import ValidationError

    from skiway.formats.iceberg.unpacking import parsed_schema

    try:
        parsed = json.loads(text)
        if isinstance(parsed, dict) and not parsed.get("fields"):
            return None
        return parsed_schema(parsed)
    except (ValidationError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise failure(
            InvalidArgument,
            "field.invalid",
            field="schema_json",
            found=f"not a schema ({reason})",
            wanted='give it in the JSON form of Iceberg, such as {"type": "struct", "fields": [{"id": 1, "name": "id", '
            '"required": true, "type": "long"}]}',
        ) from None
