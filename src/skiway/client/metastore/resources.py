"""What the metastore answers with: thin, frozen, typed views of its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Generic, TypeVar

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.changes import time_of
from skiway.client.metastore.names import Id, dotted
from skiway.client.metastore.places import Place
from skiway.client.metastore.table_stats import TableStats, known_stats
from skiway.errors import Conflict
from skiway.model import v1

__all__ = ["Account", "Catalog", "Meta", "Namespace", "Resource", "Table", "View"]

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
