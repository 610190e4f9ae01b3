"""The records that the metastore client returns: thin, frozen, typed views of messages, and dataclasses with their values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import Calls, Id, dotted
from skiway.errors import Conflict, NotFound, PermissionDenied
from skiway.model import v1

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_NO_STATS: Final = frozenset(("snapshot.none", "table.stats", "policy.restricted"))
"""The error keys of tables that have no snapshot, that were never profiled, or that policies restrict."""


# -- messages to values ------------------------------------------------------------------------------------------------


def time_of(stamp: Timestamp) -> datetime:
    """Return a timestamp as a datetime in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)


def enum_name(value: Any) -> str:
    """Return the name of a field's enum value without its prefix, such as `iceberg`."""
    return str(value).partition("_")[2].lower().removesuffix("unspecified")


def value_of(message: Any, name: str) -> Any:
    """Return a field as a value of Python: None if it has presence and is not set, and "" for a choice that is not made."""
    value, descriptor = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if descriptor.is_repeated:
        return dict(value) if isinstance(value, Mapping) else tuple(value)
    if descriptor.has_presence and not message.HasField(name):
        return None
    if descriptor.enum_type is not None:
        choice = descriptor.enum_type.values_by_number.get(value)
        return "" if choice is None else enum_name(choice.name)
    match value:
        case Timestamp():
            return time_of(value)
        case v1.ResourceId():
            return Id(value.id)
    return value


class Attribute(Generic[T]):
    """An attribute of a record that is a field of its message. `field` is its name, or its path in a message of the message."""

    def __init__(self, field: str = "") -> None:
        self._field = field

    def __set_name__(self, owner: type, name: str) -> None:
        self._field = self._field or name

    def __get__(self, record: Any, owner: type) -> T:
        *parents, name = self._field.split(".")
        message = record.message
        for parent in parents:
            message = getattr(message, parent)
        value: Any = None if message is None else value_of(message, name)
        return cast(T, value)


class FromMessages:
    """A dataclass whose fields are those of one or more messages, by their names."""

    @classmethod
    def of(cls, *messages: Message | None, **converted: Any) -> Self:
        """Convert messages; None is one that the server did not send. Fields that none of them has keep their defaults.

        `converted` are values of fields that differ from those of the messages.
        """
        wanted = {each.name for each in fields(cls)} - converted.keys()  # type: ignore[arg-type]
        values: dict[str, Any] = converted
        for message in messages:
            for descriptor in message.DESCRIPTOR.fields if message is not None else ():
                name = NAMES.get(descriptor.name, descriptor.name)
                if name in wanted:
                    values[name] = value_of(message, descriptor.name)
        return cls(**values)


NAMES: Mapping[str, str] = {"resource_id": "id", "display_name": "name", "pointer_version": "version"}
"""The names of fields of messages that have other names in records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRecord(FromMessages):
    """What all resources with a name have."""

    name: str
    id: Id
    version: int | None = None
    """The stored version, which `if_version` can name; None in listings."""
    created_at: datetime | None = None
    damage: str = ""
    """In listings, what is wrong if the record is lost or corrupt; then only id and name are known."""


@dataclass(frozen=True, slots=True)
class Meta(FromMessages):
    """The stored version of a resource, and where it is stored."""

    version: int
    etag: str
    updated_at: datetime
    pointer_key: str
    blob_uri: str


# -- resources ---------------------------------------------------------------------------------------------------------


class Described:
    """The attributes that all resources with a name share. `message` is the message that the server sent."""

    id = Attribute[Id]("resource_id")
    """The id, which never changes."""
    name = Attribute[str]("display_name")
    """The resource's own name, the last segment of its path."""
    description = Attribute[str | None]()
    """The description, if there is one."""
    damage = Attribute[str]()
    """In listings, what is wrong if the record is lost or corrupt; then only id and name are known. Otherwise ""."""
    created_at = Attribute[datetime]()
    """The time of creation."""
    updated_at = Attribute[datetime]()
    """The time of the last change."""


@dataclass(frozen=True)
class Parent:
    """A catalog or namespace that contains other resources, which share one lookup of its path."""

    calls: Calls
    id: v1.ResourceId

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of the full name, starting with the catalog."""
        is_catalog = self.id.kind == v1.RK_CATALOG
        response = self.calls.rpc("LookupCatalog" if is_catalog else "LookupNamespace", resource_id=self.id)
        ref = v1.NameRef(catalog=response.display_name) if is_catalog else response.ref
        if not ref.catalog:
            kind = "catalog" if is_catalog else "namespace"
            raise NotFound(f"{kind} {self.id.id} no longer exists, nor does anything in it", key=kind, id=self.id.id)
        return (ref.catalog,) if is_catalog else (ref.catalog, *ref.path, ref.name)


@dataclass(frozen=True, slots=True)
class Parents:
    """A cache of the parents of the resources of one response or listing."""

    calls: Calls
    _known: dict[str, Parent] = field(default_factory=dict, init=False)

    def of(self, id: v1.ResourceId) -> Parent:  # noqa: A002 - an id
        """Return the parent with this id; the same object each time."""
        return self._known.setdefault(id.id, Parent(self.calls, id))


@dataclass(frozen=True, repr=False, eq=False)
class Versioned(ABC, Generic[M]):
    """A resource as of when it was read, with its stored version. Two are equal if their messages are equal."""

    kind: ClassVar[str]
    """The kind of resource as in the names of RPCs and their fields: `table` for `GetTable` and its `table_id`."""

    message: M
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
class Resource(Versioned[M], Described):
    """A resource that is identified by its id."""

    def _key(self) -> Mapping[str, Any]:
        message: Any = self.message
        return {f"{self.kind}_id": message.resource_id}

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={str(self.id)!r})"


class Account(Resource[v1.Account]):
    """An account, which owns catalogs."""

    kind = "account"

    tags = Attribute[Mapping[str, str]]()
    """The labels of the account."""
    quotas = Attribute[Mapping[str, float]]()
    """The quotas that the account sets for itself."""


class PathResource(Resource[M]):
    """A resource with a full name and properties. The names of its parents are looked up at the first use."""

    properties = Attribute[Mapping[str, str]]()
    """The properties that users have set."""

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The segments of the full name, starting with the catalog."""
        return (*self._parent_path(), self.name)

    def _parent_path(self) -> Sequence[str]:
        message: Any = self.message
        return self._parents.of(message.namespace_id).path

    def __str__(self) -> str:
        return dotted(self.path)


class Catalog(PathResource[v1.Catalog]):
    """A catalog, which contains namespaces."""

    kind = "catalog"

    protected = Attribute[bool]()
    """Whether only merges of branches change what it contains."""
    mergers = Attribute[list[str]]()
    """Who may merge, if it is protected; everybody who may write it, if this is empty."""
    required_rules = Attribute[list[str]]()
    """The quality rules that must pass before a merge, if it is protected."""

    def _parent_path(self) -> Sequence[str]:
        return ()


class Namespace(PathResource[v1.Namespace]):
    """A namespace, which contains tables, views and further namespaces."""

    kind = "namespace"

    def _parent_path(self) -> Sequence[str]:
        return (*self._parents.of(self.message.catalog_id).path, *self.message.parents)


class Table(PathResource[v1.Table]):
    """A table."""

    kind = "table"

    schema_json = Attribute[str]()
    """The schema, as JSON."""
    upstream = Attribute[v1.UpstreamRef | None]()
    """The source of a mirrored table."""
    problem = Attribute[str]("upstream.problem")
    """Why the last synchronisation could not read the table; "" if it could, and for a managed table."""

    @cached_property
    def stats(self) -> TableStats:
        """Statistics of the current snapshot, requested at the first use.

        If there are none, or policies hide them from the caller, every value is None.
        """
        if self.message.damage:
            return TableStats(None)
        current = v1.SnapshotRef(special=v1.SS_CURRENT)
        try:
            response = self._calls.rpc("GetTableStats", table_id=self.message.resource_id, snapshot=current)
        except (NotFound, PermissionDenied) as error:
            if error.key not in _NO_STATS:
                raise
            return TableStats(None)
        return TableStats(response.stats)


class View(PathResource[v1.View]):
    """A view, with SQL in one or more dialects."""

    kind = "view"

    rights = Attribute[str]()
    """The rights with which the view reads its tables: `invoker` or `definer`."""

    @property
    def sql(self) -> Mapping[str, str]:
        """The SQL by dialect."""
        return {each.dialect: each.sql for each in self.message.sql_definitions}


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table in one snapshot. None means unknown; `message` is the message that the server sent."""

    message: v1.TableStats | None

    snapshot_id = Attribute[int | None]()
    """The snapshot that the statistics describe."""
    row_count = Attribute[int | None]()
    """The number of rows."""
    data_file_count = Attribute[int | None]()
    """The number of data files."""
    total_size_bytes = Attribute[int | None]()
    """The total size of the data files."""
    updated_at = Attribute[datetime | None]()
    """The time when the statistics were stored."""

    @property
    def row_count_is_bound(self) -> bool:
        """Whether the table has at most `row_count` rows, because some may be deleted."""
        return self.properties.get("quality.row_count") == "bound"

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
