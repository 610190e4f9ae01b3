"""Where a table comes from, checked before it is stored."""

from __future__ import annotations

from skiway.errors import InvalidArgument, NotFound
from skiway.metastore import keys
from skiway.metastore.failures import failure
from skiway.metastore.ids import local_id, resource_id
from skiway.metastore.names import normal_text
from skiway.metastore.realm import Realm
from skiway.model import v1

__all__ = ["checked"]


def checked(realm: Realm, upstream: v1.UpstreamRef) -> None:
    """Raise unless the reference can be stored: it must say where, and its connector must exist."""
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
