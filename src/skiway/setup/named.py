"""Declarations of resources that an account has by name, as their descriptions say: read, compared and applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from skiway.errors import InvalidArgument
from skiway.resources import Resource
from skiway.setup.declarations import DESCRIBED, Described, SecretRef

__all__ = ["declaration_of", "described", "described_values", "missing_reference", "with_sorted_sets"]


def described(item: object) -> Resource | None:
    """The kind of a declaration, if its class is made from a description."""
    return next((resource for resource, kind in DESCRIBED.values() if type(item) is kind), None)


def declaration_of(resource: Resource, record: Any, references: Mapping[str, SecretRef]) -> Described:
    """The declaration of what the server has, with references in the place of secrets."""
    given = {field.name: getattr(record, field.name) for field in resource.fields if not field.is_secret}
    present = {name: value for name, value in given.items() if value is not None}
    return DESCRIBED[resource.plural][1](name=record.name, **present, **references)


def with_sorted_sets(resource: Resource, item: Any) -> Any:
    """A declaration in which equal sets are equal."""
    sets = {field.name: tuple(sorted(set(getattr(item, field.name)))) for field in resource.fields if field.is_set}
    return replace(item, **sets)


def missing_reference(resource: Resource, item: Any) -> Iterator[tuple[str, str]]:
    """Yield each secret field whose reference is not exactly one of env and file, and what to do."""
    for name in resource.secrets:
        reference: SecretRef | None = getattr(item, name)
        if reference is not None and bool(reference.env) == bool(reference.file):
            yield name, f"{name} needs one reference: {{env: NAME}} or {{file: PATH}}"


def described_values(
    resource: Resource, item: Any, changed: frozenset[str] | None, secrets: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments that create a resource or, with the keys that have `changed`, update it. An empty text clears."""
    given: dict[str, Any] = dict(secrets)
    for field in resource.fields:
        if field.is_secret:
            if changed is None and field.required and field.name not in secrets:
                message = f"a new {resource.name} needs a {field.name}: give {{env: NAME}} or {{file: PATH}}"
                raise InvalidArgument(message, key="field", field=field.name)
        elif changed is None or field.name in changed:
            value = getattr(item, field.name)
            given[field.name] = None if value == "" else value
    return given
