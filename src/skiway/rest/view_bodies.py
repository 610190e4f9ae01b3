# mypy: disable-error-code="misc,no-any-return"
"""Request bodies with views, as PyIceberg models. Loads PyIceberg: import it where it is used."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.schema import Schema

from skiway.formats.iceberg.view_metadata import ViewUpdate, ViewVersion
from skiway.rest.bodies import Identifier, at_most

__all__ = ["CommitView", "CreateView"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True)


class CreateView(_Body):
    """A view with its first version."""

    name: str
    location: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    view_version: Annotated[ViewVersion, Field(alias="view-version")]
    properties: dict[str, str] = Field(default_factory=dict)


class AssertViewUuid(_Body):
    type: Literal["assert-view-uuid"]
    uuid: str


class CommitView(_Body):
    """Updates of a view, and what they require."""

    identifier: Identifier | None = None
    requirements: Annotated[tuple[AssertViewUuid, ...], at_most(1000)] = ()
    updates: Annotated[tuple[ViewUpdate, ...], at_most(1000)]
