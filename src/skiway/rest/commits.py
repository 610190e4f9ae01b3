"""Create tables and commit to them.

A staged table exists only for the client: the commit that asserts its creation creates it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skiway.errors import AlreadyExists, InvalidArgument
from skiway.formats.iceberg.metadata import metadata_folder, metadata_json
from skiway.metastore import managed
from skiway.metastore.managed import ManagedTable
from skiway.metastore.records.errors import failure
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.calls import RestRequest, RestResponse
from skiway.rest.delegation import NOTHING, Delegated, delegated_to_creator
from skiway.rest.tables import loaded

if TYPE_CHECKING:
    from skiway.rest.table_bodies import Commit

__all__ = ["commit", "create"]

log = logging.getLogger("skiway.rest")


def create(request: RestRequest) -> RestResponse:
    """Create a table without snapshots, or stage one."""
    from skiway.rest.table_bodies import table_in

    namespace = resolve.namespace(request, resolve.writable(request))
    wanted = table_in(request.body)
    with resolve.claiming(full_path(namespace), wanted.name), _applying():
        made = managed.create(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            schema=wanted.table_schema,
            spec=wanted.partition_spec,
            order=wanted.write_order,
            properties=wanted.properties,
            location=wanted.location,
            stage=wanted.stage_create,
        )
    return _response(request, made, delegated=delegated_to_creator(request, made))


def commit(request: RestRequest) -> RestResponse:
    """Apply the updates if all requirements hold, and return the table."""
    from skiway.rest.table_bodies import commit_in

    catalog = resolve.writable(request)
    wanted = commit_in(request.body)
    _check_identifier(request, wanted)
    if wanted.creates:
        return _response(request, _create_staged(request, resolve.namespace(request, catalog), wanted))
    table = resolve.table(request, catalog)
    resolve.require_managed(request.realm, resolve.require_served(table, mirrors=request.lake.mirrors))
    request.realm.require_unrestricted(table)
    with _applying():
        made = managed.commit(
            request.realm, request.lake.warehouse, table.resource_id, wanted.requirements, wanted.updates
        )
    return _response(request, made)


def _create_staged(request: RestRequest, namespace: v1.Namespace, wanted: Commit) -> ManagedTable:
    name = request.names["table"]
    with resolve.claiming(full_path(namespace), name, key="table.created.meanwhile"), _applying():
        if resolve.find_table(request.realm, namespace, name) is not None:
            raise failure(AlreadyExists, "table.already.exists", resource="table", name=name)
        return managed.create_staged(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=name,
            requirements=wanted.requirements,
            updates=wanted.updates,
        )


@contextmanager
def _applying() -> Iterator[None]:
    """Report updates that do not fit together: PyIceberg does not validate them when it applies them."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        log.warning("updates could not be applied", exc_info=True)
        raise InvalidArgument(
            f"the updates are inconsistent, or do not match the table ({type(error).__name__}): load the table, and compare "
            "the ids of schemas, specs, orders and snapshots",
            key="update.invalid",
            field="updates",
        ) from error


def _check_identifier(request: RestRequest, wanted: Commit) -> None:
    path, name = resolve.levels(request.names["namespace"]), request.names["table"]
    if wanted.contradicts(path, name):
        assert wanted.identifier is not None
        named = ".".join((*wanted.identifier.namespace, wanted.identifier.name))
        raise InvalidArgument(
            f"identifier is {named}, but the path names {'.'.join((*path, name))}: send both for the same table",
            key="field.invalid",
            field="identifier",
        )


def _response(request: RestRequest, made: ManagedTable, *, delegated: Delegated = NOTHING) -> RestResponse:
    location = made.metadata_location
    if not location:
        _make_folder(made)
        return loaded(request, metadata_json(made.metadata), None, delegated=delegated)
    # Cached for the next load.
    key = (request.realm.account_id, made.id, location, "all")
    text = request.lake.rendered.get(key, lambda: metadata_json(made.metadata))
    return loaded(request, text, location, delegated=delegated)


def _make_folder(staged: ManagedTable) -> None:
    """On a local disk, create the folder that the client will write to, because some clients do not.

    Nothing references the file in it, so garbage collection deletes it if the table is never committed.
    """
    if staged.metadata.location.startswith("file:"):
        staged.files.write(f"{metadata_folder(staged.metadata)}/staged", b"")
