"""Create and register tables, and commit to one or several of them.

A staged table exists only for the client: the commit that asserts its creation creates it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skiway.errors import AlreadyExists, InvalidArgument, Unavailable
from skiway.formats.iceberg.metadata import metadata_folder, metadata_json
from skiway.metastore import managed
from skiway.metastore.managed import ManagedTable
from skiway.metastore.records.errors import failure
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import Registration, decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse
from skiway.rest.handlers.delegation import NOTHING, Delegated, delegated_to_creator
from skiway.rest.handlers.namespaces import properties_of_new
from skiway.rest.handlers.tables import MODES, etag_of, loaded
from skiway.rest.resolve import Resolver

if TYPE_CHECKING:
    from skiway.rest.models import Commit

log = logging.getLogger("skiway.rest")


def create(request: RestRequest) -> RestResponse:
    """Create a table without snapshots, or stage one."""
    from skiway.rest.models import table_in

    resolver = resolve.writable(request)
    namespace = resolver.namespace()
    wanted = table_in(request.body)
    with resolve.claiming(request.realm, namespace, wanted.name), _applying():
        made = managed.create(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            schema=wanted.table_schema,
            spec=wanted.partition_spec,
            order=wanted.write_order,
            properties=properties_of_new("table", resolver.catalog, wanted.properties),
            location=wanted.location,
            stage=wanted.stage_create,
        )
    return _response(request, made, delegated=delegated_to_creator(request, made))


def commit(request: RestRequest) -> RestResponse:
    """Apply the updates if all requirements hold, and return the table."""
    from skiway.rest.models import Commit

    resolver = resolve.writable(request)
    wanted = decoded(request.body, Commit)
    resolve.check_identifier(request, wanted.identifier, request.names["table"])
    if wanted.creates:
        return _response(request, _create_staged(resolver, wanted))
    table = resolver.managed_table()
    request.realm.require_unrestricted(table)
    with _applying():
        made = managed.commit(
            request.realm,
            request.lake.warehouse,
            table.resource_id,
            wanted.requirements,
            wanted.updates,
            turns=request.lake.turns,
        )
    return _response(request, made)


def commit_transaction(request: RestRequest) -> RestResponse:
    """Apply the updates of several tables if all requirements of all of them hold: all updates, or none."""
    from skiway.rest.models import Transaction

    resolver = resolve.writable(request)
    changes, creations, created = [], [], []
    for wanted in decoded(request.body, Transaction).table_changes:
        if wanted.identifier is None:
            raise InvalidArgument("a table change has no identifier: add it", key="field.invalid", field="identifier")
        path, name = wanted.identifier.namespace, wanted.identifier.name
        if wanted.creates:
            namespace = resolver.namespace(path)
            with resolve.claiming(request.realm, namespace, name, key="table.created.meanwhile"):
                resolve.require_free(request.realm, namespace, name, kind="table")
            creation = managed.TableCreation(namespace.resource_id, name, wanted.requirements, wanted.updates)
            creations.append(creation)
            created.append((namespace, name))
            continue
        table = resolver.managed_table(path, name)
        request.realm.require_unrestricted(table)
        changes.append(managed.TableChange.of_client(table.resource_id, wanted.requirements, wanted.updates))
    with _claiming_all(request, created), _applying():
        managed.commit_all(
            request.realm, request.lake.warehouse, changes, creations=creations, turns=request.lake.turns
        )
    return NO_CONTENT


@contextmanager
def _claiming_all(request: RestRequest, created: Sequence[tuple[v1.Namespace, str]]) -> Iterator[None]:
    """Report the table or view that has the name of one of the created tables, if the block fails because of it."""
    try:
        yield
    except AlreadyExists:
        for namespace, name in created:
            with resolve.claiming(request.realm, namespace, name, key="table.created.meanwhile"):
                resolve.require_free(request.realm, namespace, name, kind="table")
        raise


def register(request: RestRequest) -> RestResponse:
    """Create a table from an existing metadata file, or replace one by it."""
    resolver = resolve.writable(request)
    namespace = resolver.namespace()
    wanted = decoded(request.body, Registration)
    with resolve.claiming(request.realm, namespace, wanted.name), _applying():
        existing = resolver.find_table(namespace, wanted.name)
        if existing is not None and wanted.overwrite:
            request.realm.require_unrestricted(existing)
        else:
            resolve.require_free(request.realm, namespace, wanted.name, kind="table")
        made = managed.register(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            metadata_location=wanted.metadata_location,
            overwrite=wanted.overwrite,
        )
    return _response(request, made)


def _create_staged(resolver: Resolver, wanted: Commit) -> ManagedTable:
    request, namespace = resolver.request, resolver.namespace()
    name = request.names["table"]
    with resolve.claiming(request.realm, namespace, name, key="table.created.meanwhile"), _applying():
        if resolver.find_table(namespace, name) is not None:
            raise failure(AlreadyExists, "table.already.exists", resource="table", name=name)
        creation = managed.TableCreation(namespace.resource_id, name, wanted.requirements, wanted.updates)
        return managed.create_staged(request.realm, request.lake.warehouse, creation)


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


def _response(request: RestRequest, made: ManagedTable, *, delegated: Delegated = NOTHING) -> RestResponse:
    """The response to a change that is done. If it cannot be made, the client must not take the change for undone."""
    try:
        return _rendered(request, made, delegated)
    except Exception as error:
        raise Unavailable(
            "the change is done, but the response could not be made: load the table, and do not repeat the change",
            key="commit.unanswered",
            detail=str(error),
        ) from error


def _rendered(request: RestRequest, made: ManagedTable, delegated: Delegated) -> RestResponse:
    location = made.metadata_location
    if not location:
        made.files.make_folder(metadata_folder(made.metadata))  # because some clients create no folders
        return loaded(request, metadata_json(made.metadata), None, delegated=delegated)
    # Cached for the next load.
    shown_as = f"{MODES[0]} {request.branch_id}"
    key = (request.realm.account_id, made.id, location, shown_as)
    text = request.lake.rendered.get(key, lambda: made.json or metadata_json(made.metadata))
    headers = {"etag": etag_of(made.id, location, shown_as, delegated)}
    return loaded(request, text, location, headers=headers, delegated=delegated)
