# mypy: disable-error-code="misc,no-any-return"
"""Bodies of requests with tables, views and commits, as PyIceberg models. Loads PyIceberg: import it where it is used."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.view.metadata import ViewVersion

from skiway.formats.iceberg import metadata_files as _unpacking  # noqa: F401 - PyIceberg then knows all default values
from skiway.formats.iceberg.view_metadata import ViewUpdate
from skiway.rest.bodies import FrozenBody, Identifier, at_most, decoded

MAX_CHANGES: Final = 10_000
"""How many requirements, and how many updates, a commit may have."""
MAX_TABLES: Final = 1000
"""How many tables one request may change. The store may allow fewer."""


class Commit(FrozenBody):
    """A commit: requirements, and the updates to apply if they hold."""

    identifier: Identifier | None = None
    requirements: Annotated[tuple[TableRequirement, ...], at_most(MAX_CHANGES)]
    updates: Annotated[tuple[TableUpdate, ...], at_most(MAX_CHANGES)]

    @field_validator("updates", mode="before")
    @classmethod
    def _without_keys(cls, updates: Any) -> Any:
        """Tables have no encryption keys, so there is nothing to remove; PyIceberg does not know this update."""
        if not isinstance(updates, list):
            return updates
        return [
            update
            for update in updates
            if not (isinstance(update, dict) and update.get("action") == "remove-encryption-key")
        ]

    @property
    def creates(self) -> bool:
        """Whether the commit creates a staged table."""
        return any(isinstance(requirement, AssertCreate) for requirement in self.requirements)


class Transaction(FrozenBody):
    """Commits to several tables."""

    table_changes: Annotated[tuple[Commit, ...], Field(alias="table-changes", min_length=1), at_most(MAX_TABLES)]


def table_in(body: bytes) -> CreateTableRequest:
    """Decode a table to create. The model requires fields that clients may leave out."""
    return decoded(body, CreateTableRequest, **{"location": None, "partition-spec": None, "write-order": None})


class CreateView(FrozenBody):
    """A view with its first version."""

    name: str
    location: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    view_version: Annotated[ViewVersion, Field(alias="view-version")]
    properties: dict[str, str] = Field(default_factory=dict)


class AssertViewUuid(FrozenBody):
    type: Literal["assert-view-uuid"]
    uuid: str


class CommitView(FrozenBody):
    """Updates of a view, and what they require."""

    identifier: Identifier | None = None
    requirements: Annotated[tuple[AssertViewUuid, ...], at_most(1000)] = ()
    updates: Annotated[tuple[ViewUpdate, ...], at_most(1000)]
