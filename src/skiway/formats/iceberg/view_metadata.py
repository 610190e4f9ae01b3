# mypy: disable-error-code="call-arg,no-any-return,misc"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""Metadata of Iceberg views: created, changed by updates, and converted from and to JSON.

Metadata is an immutable value. As with tables, the view assigns the ids of schemas and versions, whatever a client proposes:
an addition gets the next free id, or the id of an equal one, and -1 means the last added one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, RemovePropertiesUpdate, SetLocationUpdate
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.files import first_lines
from skiway.formats.iceberg import lib

_LAST_ADDED: Final = -1
_HISTORY: Final = "version.history.num-entries"
_MAY_DROP_DIALECTS: Final = "replace.drop-dialect.allowed"


class _Update(BaseModel):
    model_config = ConfigDict(frozen=True)


class AssignUuid(_Update):
    action: Literal["assign-uuid"]
    uuid: str


class UpgradeFormatVersion(_Update):
    action: Literal["upgrade-format-version"]
    format_version: Annotated[int, Field(alias="format-version", ge=1, le=1)]


class SetProperties(_Update):
    action: Literal["set-properties"]
    updates: dict[str, str]


class AddViewVersion(_Update):
    action: Literal["add-view-version"]
    view_version: Annotated[ViewVersion, Field(alias="view-version")]


class SetCurrentViewVersion(_Update):
    action: Literal["set-current-view-version"]
    view_version_id: Annotated[int, Field(alias="view-version-id")]


ViewUpdate = Annotated[
    AssignUuid
    | UpgradeFormatVersion
    | AddSchemaUpdate
    | SetLocationUpdate
    | SetProperties
    | RemovePropertiesUpdate
    | AddViewVersion
    | SetCurrentViewVersion,
    Field(discriminator="action"),
]


def new_view(
    *, view_uuid: str, location: str, schema: Schema, version: ViewVersion, properties: Mapping[str, str]
) -> ViewMetadata:
    """The metadata of a view with one version."""
    _check_version(version)
    first = version.model_copy(update={"version_id": 1, "schema_id": 0})
    return ViewMetadata(
        view_uuid=view_uuid,
        format_version=1,
        location=location,
        schemas=[_numbered(schema, 0)],
        current_version_id=1,
        versions=[first],
        version_log=[ViewHistoryEntry(timestamp_ms=first.timestamp_ms, version_id=1)],
        properties=dict(properties),
    )


def updated_view(base: ViewMetadata, updates: Sequence[Any], *, now_ms: int, dialects: Set[str]) -> ViewMetadata:
    """Apply updates. Raise `InvalidArgument` if they do not fit together, or if one of these `dialects` is lost."""
    builder = _Builder(base, now_ms)
    for update in updates:
        builder.apply(update)
    made = builder.finished()
    lost = dialects - dialects_of(made)
    if lost and made.properties.get(_MAY_DROP_DIALECTS, "false").lower() != "true":
        raise InvalidArgument(
            f"Cannot replace view due to loss of view dialects ({_MAY_DROP_DIALECTS}=false): the new version has no SQL for "
            f"{', '.join(sorted(lost))}; add it, or set the property to true",
            key="view.dialects_lost",
        )
    return made


def with_version(base: ViewMetadata, schema: Schema, version: ViewVersion) -> ViewMetadata:
    """The metadata with a further version, which becomes the current one, whatever its dialects."""
    builder = _Builder(base, version.timestamp_ms)
    builder.add_schema(schema)
    builder.add_version(version.model_copy(update={"schema_id": _LAST_ADDED}))
    builder.set_current(_LAST_ADDED)
    return builder.finished()


def dialects_of(metadata: ViewMetadata) -> set[str]:
    """The dialects of the current version, in lower case."""
    current = next(version for version in metadata.versions if version.version_id == metadata.current_version_id)
    return {representation.root.dialect.strip().lower() for representation in current.representations}


def view_json(metadata: ViewMetadata) -> str:
    """The metadata as JSON, as in a metadata file."""
    return metadata.model_dump_json(by_alias=True, exclude_none=True)


def parsed_view(text: str, *, of: str) -> ViewMetadata:
    """Parse metadata and check that it is consistent; `of` describes it in errors."""
    try:
        found = ViewMetadata.model_validate(lib.added_types.with_types(json.loads(text)))
        _check(found)
    except (ValidationError, ValueError) as error:
        raise PreconditionFailed(
            f"{of} is not the metadata of an Iceberg view; restore it, or name another file",
            key="view.metadata_invalid",
            detail=first_lines(error),
        ) from error
    return found


def _check(metadata: ViewMetadata) -> None:
    schemas = {schema.schema_id for schema in metadata.schemas}
    if metadata.current_version_id not in {each.version_id for each in metadata.versions}:
        raise ValueError(f"its current version {metadata.current_version_id} does not exist")
    for version in metadata.versions:
        if version.schema_id not in schemas:
            raise ValueError(f"its version {version.version_id} has schema {version.schema_id}, which does not exist")
        _check_version(version)


class _Builder:
    def __init__(self, base: ViewMetadata, now_ms: int) -> None:
        self._base, self._now_ms = base, now_ms
        self._schemas = {schema.schema_id: schema for schema in base.schemas}
        self._versions = {version.version_id: version for version in base.versions}
        self._log = list(base.version_log)
        self._properties = dict(base.properties)
        self._location, self._current = base.location, base.current_version_id
        self._last_schema: int | None = None
        self._last_version: int | None = None
        self._added = 0

    def apply(self, update: Any) -> None:
        match update:
            case AssignUuid():
                if update.uuid != self._base.view_uuid:
                    raise _invalid(f"the view's uuid cannot change from {self._base.view_uuid} to {update.uuid}")
            case AddSchemaUpdate():
                self.add_schema(update.schema_)
            case SetLocationUpdate():
                self._location = update.location
            case SetProperties():
                self._properties |= update.updates
            case RemovePropertiesUpdate():
                for name in update.removals:
                    self._properties.pop(name, None)
            case AddViewVersion():
                self.add_version(update.view_version)
            case SetCurrentViewVersion():
                self.set_current(update.view_version_id)

    def add_schema(self, schema: Schema) -> None:
        same = (number for number, known in self._schemas.items() if known == schema)
        number = self._last_schema = next(same, max(self._schemas, default=-1) + 1)
        self._schemas.setdefault(number, _numbered(schema, number))

    def add_version(self, version: ViewVersion) -> None:
        _check_version(version)
        schema_id = version.schema_id
        if schema_id == _LAST_ADDED:
            schema_id = _required(self._last_schema, "the version has the last added schema, but none was added")
        if schema_id not in self._schemas:
            raise _invalid(f"the version has schema {schema_id}, which the view does not have")
        wanted = version.model_copy(update={"schema_id": schema_id})
        same = (number for number, known in self._versions.items() if _content(known) == _content(wanted))
        number = self._last_version = next(same, max(self._versions, default=0) + 1)
        if number not in self._versions:
            self._versions[number] = wanted.model_copy(update={"version_id": number})
            self._added += 1

    def set_current(self, given: int) -> None:
        number = given
        if given == _LAST_ADDED:
            number = _required(self._last_version, "the last added version becomes current, but none was added")
        if number not in self._versions:
            raise _invalid(f"the view has no version {number}")
        if number == self._current:
            return
        is_new = number not in {version.version_id for version in self._base.versions}
        at = self._versions[number].timestamp_ms if is_new else self._now_ms
        self._log.append(ViewHistoryEntry(timestamp_ms=at, version_id=number))
        self._current = number

    def finished(self) -> ViewMetadata:
        kept = self._kept()
        log: list[ViewHistoryEntry] = []
        for entry in self._log:  # a log without gaps: it begins after the last version that was forgotten
            log = [*log, entry] if entry.version_id in kept else []
        return self._base.model_copy(
            update={
                "location": self._location,
                "schemas": list(self._schemas.values()),
                "current_version_id": self._current,
                "versions": [self._versions[number] for number in sorted(kept)],
                "version_log": log,
                "properties": self._properties,
            }
        )

    def _kept(self) -> set[int]:
        """The versions to keep: the current one and the newest, at least as many as were added."""
        given = self._properties.get(_HISTORY, "10")
        if not given.isdecimal() or int(given) < 1:
            raise _invalid(f"property {_HISTORY} is {given[:40]!r}: set a whole number from 1")
        size = max(int(given), self._added)
        newest = [number for number in sorted(self._versions, reverse=True) if number != self._current]
        return {self._current, *newest[: size - 1]}


def _check_version(version: ViewVersion) -> None:
    if not version.representations:
        raise _invalid("Invalid view version: it has no SQL; add a representation")
    dialects = [representation.root.dialect.lower() for representation in version.representations]
    for dialect in dialects:
        if dialects.count(dialect) > 1:
            raise _invalid(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
    if not all(
        representation.root.sql.strip() and representation.root.dialect.strip()
        for representation in version.representations
    ):
        raise _invalid("Invalid view version: a representation has no SQL or no dialect")


def _content(version: ViewVersion) -> Any:
    return version.model_dump(exclude={"version_id", "timestamp_ms"})


def _numbered(schema: Schema, number: int) -> Schema:
    return schema.model_copy(update={"schema_id": number})


def _required(found: int | None, otherwise: str) -> int:
    if found is None:
        raise _invalid(otherwise)
    return found


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(message, key="view.update.invalid", field="updates")
