"""The resources that the metastore client returns: thin, frozen, typed views of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import Calls, Id, dotted
from skiway.errors import Conflict, NotFound, PermissionDenied
from skiway.model import v1

V = TypeVar("V", bound=Message)
M = TypeVar("M", v1.Account, v1.Catalog, v1.Namespace, v1.Table, v1.View, v1.Connector)

_NO_STATS: Final = frozenset(("snapshot.none", "table.stats", "policy.restricted"))
"""The error keys of tables that have no snapshot, that were never profiled, or that policies restrict."""


def time_of(stamp: Timestamp) -> datetime:
    """Return a timestamp as a datetime in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Meta:
    """The stored version of a resource, and where it is stored."""

    version: int
    etag: str
    updated_at: datetime
    pointer_key: str
    blob_uri: str

    @classmethod
    def of(cls, message: v1.MutationMeta) -> Meta:
        """Convert the message."""
        return cls(
            message.pointer_version, message.etag, time_of(message.updated_at), message.pointer_key, message.blob_uri
        )


class Described(Generic[M]):
    """The properties that all resources with a name share. `message` is the message that the server sent."""

    message: M

    @property
    def id(self) -> Id:
        """The id, which never changes."""
        return Id(self.message.resource_id.id)

    @property
    def name(self) -> str:
        """The resource's own name, the last segment of its path."""
        return self.message.display_name

    @property
    def description(self) -> str | None:
        """The description, if there is one."""
        return self.message.description if self.message.HasField("description") else None

    @property
    def damage(self) -> str:
        """In listings, what is wrong if the record is lost or corrupt; then only id and name are known. Otherwise ""."""
        return self.message.damage

    @property
    def created_at(self) -> datetime:
        """The time of creation."""
        return time_of(self.message.created_at)

    @property
    def updated_at(self) -> datetime:
        """The time of the last change."""
        return time_of(self.message.updated_at)


@dataclass(frozen=True)
class Parent:
    """A catalog or namespace that contains other resources, which share one lookup of its path."""

    calls: Calls
    id: v1.ResourceId

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of the full name, starting with the catalog."""
        if self.id.kind == v1.RK_CATALOG:
            catalog = self.calls.call(v1.LookupCatalogRequest(resource_id=self.id), v1.LookupCatalogResponse)
            found: tuple[str, ...] = (catalog.display_name,)
        else:
            namespace = self.calls.call(v1.LookupNamespaceRequest(resource_id=self.id), v1.LookupNamespaceResponse)
            found = (namespace.ref.catalog, *namespace.ref.path, namespace.ref.name)
        if not found[0]:
            kind = "catalog" if self.id.kind == v1.RK_CATALOG else "namespace"
            raise NotFound(f"{kind} {self.id.id} no longer exists, nor does anything in it", key=kind, id=self.id.id)
        return found


@dataclass(frozen=True, slots=True)
class Parents:
    """A cache of the parents of the resources of one response or listing."""

    calls: Calls
    _known: dict[str, Parent] = field(default_factory=dict, init=False)

    def of(self, id: v1.ResourceId) -> Parent:  # noqa: A002 - an id
        """Return the parent with this id; the same object each time."""
        return self._known.setdefault(id.id, Parent(self.calls, id))


@dataclass(frozen=True, repr=False, eq=False)
class Versioned(ABC, Generic[V]):
    """A resource as of when it was read, with its stored version. Two are equal if their messages are equal."""

    kind: ClassVar[str]
    """The kind of resource as in the names of RPCs and their fields: `table` for `GetTable` and its `table_id`."""

    message: V
    _calls: Calls
    _meta: v1.MutationMeta | None
    _parents: Parents

    @cached_property
    def meta(self) -> Meta:
        """The stored version of exactly this content.

        A listing does not include it; it is then requested at the first use, and `Conflict` is raised if the content has
        changed since.
        """
        if self._meta is not None:
            return Meta.of(self._meta)
        response = self._calls.rpc(f"Get{self.kind.title()}", **self._key())
        if getattr(response, self.kind) != self.message:
            raise Conflict(
                f"{self!r} has changed since it was listed: get it again to learn its version", key="version.unknown"
            )
        return Meta.of(response.meta)

    @abstractmethod
    def _key(self) -> Mapping[str, Any]:
        """The fields that identify this resource in a request."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Versioned) and bool(self.message == other.message)

    @abstractmethod
    def __hash__(self) -> int: ...


@dataclass(frozen=True, repr=False, eq=False)
class Resource(Versioned[M], Described[M]):
    """A resource that is identified by its id."""

    def _key(self) -> Mapping[str, Any]:
        return {f"{self.kind}_id": self.message.resource_id}

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={str(self.id)!r})"


class Account(Resource[v1.Account]):
    """An account, which owns catalogs."""

    kind = "account"

    @property
    def tags(self) -> Mapping[str, str]:
        """The labels of the account."""
        return dict(self.message.tags)

    @property
    def quotas(self) -> Mapping[str, float]:
        """The quotas that the account sets for itself."""
        return dict(self.message.quotas)


P = TypeVar("P", v1.Catalog, v1.Namespace, v1.Table, v1.View)


class PathResource(Resource[P]):
    """A resource with a full name and properties. The names of its parents are looked up at the first use."""

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of the full name, starting with the catalog."""
        return (*self._parent_path(), *self._own_segments())

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that users have set."""
        return dict(self.message.properties)

    def _parent_path(self) -> Sequence[str]:
        """The path that `_own_segments` continue."""
        return ()

    def _own_segments(self) -> Sequence[str]:
        return (self.name,)

    def __str__(self) -> str:
        return dotted(self.path)


class Catalog(PathResource[v1.Catalog]):
    """A catalog, which contains namespaces."""

    kind = "catalog"


class Namespace(PathResource[v1.Namespace]):
    """A namespace, which contains tables, views and further namespaces."""

    kind = "namespace"

    def _parent_path(self) -> Sequence[str]:
        return self._parents.of(self.message.catalog_id).path

    def _own_segments(self) -> Sequence[str]:
        return (*self.message.parents, self.name)


class Table(PathResource[v1.Table]):
    """A table."""

    kind = "table"

    @property
    def schema_json(self) -> str:
        """The schema, as JSON."""
        return self.message.schema_json

    @property
    def upstream(self) -> v1.UpstreamRef | None:
        """The source of a mirrored table."""
        return self.message.upstream if self.message.HasField("upstream") else None

    @property
    def problem(self) -> str:
        """Why the last synchronisation could not read the table; "" if it could, and for a managed table."""
        return self.message.upstream.problem

    @cached_property
    def stats(self) -> TableStats:
        """Statistics of the current snapshot, requested at the first use.

        If there are none, or policies hide them from the caller, every value is None.
        """
        if self.message.damage:
            return TableStats(None)
        request = v1.GetTableStatsRequest(
            table_id=self.message.resource_id, snapshot=v1.SnapshotRef(special=v1.SS_CURRENT)
        )
        try:
            return TableStats(self._calls.call(request, v1.GetTableStatsResponse).stats)
        except (NotFound, PermissionDenied) as error:
            if error.key not in _NO_STATS:
                raise
            return TableStats(None)

    def _parent_path(self) -> Sequence[str]:
        return self._parents.of(self.message.namespace_id).path


class View(PathResource[v1.View]):
    """A view, with SQL in one or more dialects."""

    kind = "view"

    @property
    def sql(self) -> Mapping[str, str]:
        """The SQL by dialect."""
        return {each.dialect: each.sql for each in self.message.sql_definitions}

    @property
    def rights(self) -> str:
        """The rights with which the view reads its tables: `invoker` or `definer`."""
        return v1.ViewRights.Name(self.message.rights).removeprefix("VR_").lower()

    def _parent_path(self) -> Sequence[str]:
        return self._parents.of(self.message.namespace_id).path


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table in one snapshot. None means unknown; `message` is the message that the server sent."""

    message: v1.TableStats | None

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that the statistics describe."""
        return None if self.message is None else self.message.snapshot_id

    @property
    def row_count(self) -> int | None:
        """The number of rows."""
        return None if self.message is None else self.message.row_count

    @property
    def row_count_is_bound(self) -> bool:
        """Whether the table has at most `row_count` rows, because some may be deleted."""
        return self.properties.get("quality.row_count") == "bound"

    @property
    def data_file_count(self) -> int | None:
        """The number of data files."""
        return None if self.message is None else self.message.data_file_count

    @property
    def total_size_bytes(self) -> int | None:
        """The total size of the data files."""
        return None if self.message is None else self.message.total_size_bytes

    @property
    def updated_at(self) -> datetime | None:
        """The time when the statistics were stored."""
        return None if self.message is None else time_of(self.message.updated_at)

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the statistics, such as their quality."""
        return {} if self.message is None else dict(self.message.properties)

    def __bool__(self) -> bool:
        """Whether there are statistics."""
        return self.message is not None

    def __repr__(self) -> str:
        facts = ("snapshot_id", "row_count", "data_file_count", "total_size_bytes")
        return f"TableStats({', '.join(f'{fact}={getattr(self, fact)}' for fact in facts)})"
