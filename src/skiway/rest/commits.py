"""Creating tables and committing to them.

A table that is staged exists for the client only: the commit that asserts its creation brings it into being.
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
from skiway.rest import mirrored, places
from skiway.rest.calls import Answer, Asked
from skiway.rest.tables import loaded

if TYPE_CHECKING:
    from skiway.rest.table_bodies import Commit

__all__ = ["commit", "create"]

log = logging.getLogger("skiway.rest")


def create(asked: Asked) -> Answer:
    """A new table without snapshots, or one that is staged."""
    from skiway.rest.table_bodies import table_in

    namespace = places.namespace(asked, places.writable(asked))
    wanted = table_in(asked.body)
    with places.claiming(full_path(namespace), wanted.name), _applying():
        made = managed.create(
            asked.realm,
            asked.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            schema=wanted.table_schema,
            spec=wanted.partition_spec,
            order=wanted.write_order,
            properties=wanted.properties,
            location=wanted.location,
            stage=wanted.stage_create,
        )
    return _said(asked, made)


def commit(asked: Asked) -> Answer:
    """The table after the updates, if all requirements hold."""
    from skiway.rest.table_bodies import commit_in

    catalog = places.writable(asked)
    wanted = commit_in(asked.body)
    _check_identifier(asked, wanted)
    if wanted.creates:
        return _said(asked, _create_staged(asked, places.namespace(asked, catalog), wanted))
    table = places.table(asked, catalog)
    places.require_managed(asked.realm, mirrored.require_served(table, mirrors=asked.lake.mirrors))
    with _applying():
        made = managed.commit(asked.realm, asked.lake.warehouse, table.resource_id, wanted.requirements, wanted.updates)
    return _said(asked, made)


def _create_staged(asked: Asked, namespace: v1.Namespace, wanted: Commit) -> ManagedTable:
    name = asked.names["table"]
    with places.claiming(full_path(namespace), name, key="table.created.meanwhile"), _applying():
        if places.find_table(asked.realm, namespace, name) is not None:
            raise failure(AlreadyExists, "table.already.exists", resource="table", name=name)
        return managed.create_staged(
            asked.realm,
            asked.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=name,
            requirements=wanted.requirements,
            updates=wanted.updates,
        )


@contextmanager
def _applying() -> Iterator[None]:
    """A block in which updates are applied to metadata by PyIceberg, which trusts that they fit together."""
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
            f"the updates do not fit together, or not the table ({type(error).__name__}): load the table, and compare "
            "the ids of schemas, specs, orders and snapshots",
            key="update.invalid",
            field="updates",
        ) from error


def _check_identifier(asked: Asked, wanted: Commit) -> None:
    path, name = places.levels(asked.names["namespace"]), asked.names["table"]
    if wanted.contradicts(path, name):
        assert wanted.identifier is not None
        said = ".".join((*wanted.identifier.namespace, wanted.identifier.name))
        raise InvalidArgument(
            f"identifier is {said}, but the path is that of {'.'.join((*path, name))}: send both for the same table",
            key="field.invalid",
            field="identifier",
        )


def _said(asked: Asked, made: ManagedTable) -> Answer:
    location = made.metadata_location
    if not location:
        _make_folder(made)
        return loaded(asked, metadata_json(made.metadata), None)
    # Kept for those who load it next.
    key = (asked.realm.account_id, made.id, location, "all")
    return loaded(asked, asked.lake.rendered.get(key, lambda: metadata_json(made.metadata)), location)


def _make_folder(staged: ManagedTable) -> None:
    """On a disk, make the folder that the client is going to write to: not all of them make folders.

    The file in it is one that nothing refers to, like all files of a table that is never committed: gc removes it.
    """
    if staged.metadata.location.startswith("file:"):
        staged.files.write(f"{metadata_folder(staged.metadata)}/staged", b"")
