"""The names of catalogs and namespaces whose ids are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final, Generic, TypeVar

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import time_of
from skiway.client.metastore.names import Id, dotted
from skiway.errors import Conflict, NotFound
from skiway.model import v1

__all__ = [
    "Account",
    "Catalog",
    "Meta",
    "Namespace",
    "Place",
    "Places",
    "Resource",
    "Table",
    "TableStats",
    "View",
    "known_stats",
]


@dataclass(frozen=True)
class Place:
    """A catalog or namespace that others are in; all of these share one lookup of its path."""

    calls: Calls
    id: v1.ResourceId

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of its full name, the catalog's first."""
        if self.id.kind == v1.RK_CATALOG:
            catalog = self.calls.ask(v1.LookupCatalogRequest(resource_id=self.id), v1.LookupCatalogResponse)
            found: tuple[str, ...] = (catalog.display_name,)
        else:
            answer = self.calls.ask(v1.LookupNamespaceRequest(resource_id=self.id), v1.LookupNamespaceResponse)
            found = (answer.ref.catalog, *answer.ref.path, answer.ref.name)
        if not found[0]:
            kind = "catalog" if self.id.kind == v1.RK_CATALOG else "namespace"
            raise NotFound(
                f"there is no {kind} {self.id.id} any more: what was in it is gone with it", key=kind, id=self.id.id
            )
        return found


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one listing."""

    calls: Calls
    _known: dict[str, Place] = field(default_factory=dict, init=False)

    def of(self, id: v1.ResourceId) -> Place:  # noqa: A002 - it is one
        """The place with this id, the same one each time."""
        return self._known.setdefault(id.id, Place(self.calls, id))


# --------------------
# What is known of a table in one of its snapshots.


_UNKNOWN: Final = frozenset(("snapshot.none", "table.stats"))
"""Keys of a table that is there but has no snapshot yet, or one that was never profiled."""


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table. None means unknown; `message` is what was received, if anything was."""

    message: v1.TableStats | None

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot they are of."""
        return None if self.message is None else self.message.snapshot_id

    @property
    def row_count(self) -> int | None:
        """How many rows there are."""
        return None if self.message is None else self.message.row_count

    @property
    def data_file_count(self) -> int | None:
        """How many data files there are."""
        return None if self.message is None else self.message.data_file_count

    @property
    def total_size_bytes(self) -> int | None:
        """How large the data files are, all together."""
        return None if self.message is None else self.message.total_size_bytes

    @property
    def updated_at(self) -> datetime | None:
        """When they were stored last."""
        return None if self.message is None else time_of(self.message.updated_at)

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of them."""
        return {} if self.message is None else dict(self.message.properties)

    def __bool__(self) -> bool:
        """Is anything known?"""
        return self.message is not None

    def __repr__(self) -> str:
        facts = ("snapshot_id", "row_count", "data_file_count", "total_size_bytes")
        return f"TableStats({', '.join(f'{fact}={getattr(self, fact)}' for fact in facts)})"


def known_stats(calls: Calls, table_id: v1.ResourceId) -> TableStats:
    """The statistics of a table's current snapshot; unknown ones where there are none."""
    request = v1.GetTableStatsRequest(table_id=table_id, snapshot=v1.SnapshotRef(special=v1.SS_CURRENT))
    try:
        return TableStats(calls.ask(request, v1.GetTableStatsResponse).stats)
    except NotFound as error:
        if error.key not in _UNKNOWN:
            raise
        return TableStats(None)


# --------------------
# What the metastore answers with: thin, frozen, typed views of its messages.


M = TypeVar("M", v1.Account, v1.Catalog, v1.Namespace, v1.Table, v1.View)


@dataclass(frozen=True, slots=True)
class Meta:
    """In which version something is stored, since when, and where."""

    version: int
    etag: str
    updated_at: datetime
    pointer_key: str
    blob_uri: str

    @classmethod
    def of(cls, message: v1.MutationMeta) -> Meta:
        """What a message tells."""
        return cls(
            message.pointer_version, message.etag, time_of(message.updated_at), message.pointer_key, message.blob_uri
        )


@dataclass(frozen=True, repr=False, eq=False)
class Resource(ABC, Generic[M]):
    """A resource as it was when it was read; two are equal if they say the same. `message` is what was received."""

    message: M
    _calls: Calls
    _meta: v1.MutationMeta | None = None

    @property
    def id(self) -> Id:
        """Its id, which never changes."""
        return Id(self.message.resource_id.id)

    @property
    def name(self) -> str:
        """Its own name, the last segment of its path."""
        return self.message.display_name

    @property
    def description(self) -> str | None:
        """A text for people, if there is one."""
        return self.message.description if self.message.HasField("description") else None

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return time_of(self.message.created_at)

    @property
    def updated_at(self) -> datetime:
        """When it was changed last."""
        return time_of(self.message.updated_at)

    @cached_property
    def meta(self) -> Meta:
        """In which version this very content is stored.

        A listing does not tell; then it is asked for at first use, and `Conflict` if the content has changed since.
        """
        if self._meta is not None:
            return Meta.of(self._meta)
        message, meta = self._read()
        if message != self.message:
            raise Conflict(
                f"{self!r} has changed since it was listed: get it again, then its version is known",
                key="version.unknown",
                id=self.id,
            )
        return Meta.of(meta)

    @abstractmethod
    def _read(self) -> tuple[M, v1.MutationMeta]:
        """The resource as it is now."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resource) and bool(self.message == other.message)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={str(self.id)!r})"


class Account(Resource[v1.Account]):
    """The owner of catalogs."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Its labels."""
        return dict(self.message.tags)

    def _read(self) -> tuple[v1.Account, v1.MutationMeta]:
        answer = self._calls.ask(v1.GetAccountRequest(account_id=self.message.resource_id), v1.GetAccountResponse)
        return answer.account, answer.meta


class Catalog(Resource[v1.Catalog]):
    """A catalog: namespaces, and in them tables and views."""

    @property
    def path(self) -> tuple[str, ...]:
        """The segments of its full name: the one."""
        return (self.name,)

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of it."""
        return dict(self.message.properties)

    def _read(self) -> tuple[v1.Catalog, v1.MutationMeta]:
        answer = self._calls.ask(v1.GetCatalogRequest(catalog_id=self.message.resource_id), v1.GetCatalogResponse)
        return answer.catalog, answer.meta

    def __str__(self) -> str:
        return dotted(self.path)


@dataclass(frozen=True, repr=False, eq=False)
class Placed(Resource[M]):
    """A resource inside another. The names of what it is in are looked up when they are first needed."""

    _place: Place = field(kw_only=True)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of its full name, the catalog's first."""
        return (*self._place.path, *self._below)

    @property
    def _below(self) -> Sequence[str]:
        return (self.name,)

    def __str__(self) -> str:
        return dotted(self.path)


class Namespace(Placed[v1.Namespace]):
    """A place for tables, views and further namespaces."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of it."""
        return dict(self.message.properties)

    @property
    def _below(self) -> Sequence[str]:
        return (*self.message.parents, self.name)

    def _read(self) -> tuple[v1.Namespace, v1.MutationMeta]:
        request = v1.GetNamespaceRequest(namespace_id=self.message.resource_id)
        answer = self._calls.ask(request, v1.GetNamespaceResponse)
        return answer.namespace, answer.meta


class Table(Placed[v1.Table]):
    """A table."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of it."""
        return dict(self.message.properties)

    @property
    def schema_json(self) -> str:
        """Its schema, as JSON."""
        return self.message.schema_json

    @property
    def upstream(self) -> v1.UpstreamRef | None:
        """Where it comes from, if from elsewhere."""
        return self.message.upstream if self.message.HasField("upstream") else None

    @cached_property
    def stats(self) -> TableStats:
        """What is known of its current snapshot, asked for once. Where nothing is known, all is None."""
        return known_stats(self._calls, self.message.resource_id)

    def _read(self) -> tuple[v1.Table, v1.MutationMeta]:
        answer = self._calls.ask(v1.GetTableRequest(table_id=self.message.resource_id), v1.GetTableResponse)
        return answer.table, answer.meta


class View(Placed[v1.View]):
    """A view: SQL in one or more dialects."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of it."""
        return dict(self.message.properties)

    @property
    def sql(self) -> Mapping[str, str]:
        """Its SQL by dialect."""
        return {each.dialect: each.sql for each in self.message.sql_definitions}

    def _read(self) -> tuple[v1.View, v1.MutationMeta]:
        answer = self._calls.ask(v1.GetViewRequest(view_id=self.message.resource_id), v1.GetViewResponse)
        return answer.view, answer.meta
