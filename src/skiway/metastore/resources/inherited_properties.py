"""Properties that a table has or inherits: of its catalog, of the namespaces around it, and its own. The nearest one wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from skiway.config.fields import DURATION
from skiway.errors import InvalidArgument
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy
from skiway.model import v1

__all__ = ["MAINTENANCE", "InheritedProperties", "inherited"]

MAINTENANCE: Final = "maintenance."
"""The prefix of the properties that say what runs by itself."""


@dataclass(frozen=True, slots=True)
class InheritedProperties:
    """The properties of a table with a prefix: their names without it, each with its text and the object that sets it.

    A property with a wrong text raises `InvalidArgument`, which names that object.
    """

    prefix: str
    properties: Mapping[str, tuple[str, str]]

    def is_auto(self, name: str, *, default: bool = False) -> bool:
        """Whether a property is `auto` rather than `off`."""
        found = self.text(name, "auto" if default else "off")
        if found not in ("auto", "off"):
            raise self.invalid(name, "auto or off")
        return found == "auto"

    def source_of(self, name: str) -> str:
        """The object that sets a property; empty if none does."""
        return self.properties.get(name, ("", ""))[1]

    def text(self, name: str, default: str) -> str:
        """A property in lower case."""
        return self.properties.get(name, (default, ""))[0].strip().lower()

    def number(self, name: str, default: int) -> int:
        """A property that is a whole number."""
        found = self.text(name, str(default))
        if not found.isdecimal():
            raise self.invalid(name, "a number")
        return int(found)

    def share(self, name: str, default: float) -> float:
        """A property that is a number between 0 and 1."""
        try:
            found = float(self.text(name, str(default)))
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1:
            raise self.invalid(name, "a share between 0 and 1")
        return found

    def duration(self, name: str) -> timedelta | None:
        """A property that is a duration; None if it is not set."""
        if name not in self.properties:
            return None
        try:
            found: timedelta = DURATION.read(self.text(name, ""))
        except ValueError:
            raise self.invalid(name, DURATION.takes) from None
        return found

    def invalid(self, name: str, wanted: str) -> InvalidArgument:
        """The error about a property with a wrong text."""
        text, source = self.properties[name]
        return InvalidArgument(
            f"property {self.prefix}{name} of {source} is {text!r}, but must be {wanted}: change or remove it",
            key="property.invalid",
        )


def inherited(realm: Realm, table: v1.Table, prefix: str) -> Mapping[str, tuple[str, str]]:
    """The properties of a table that start with the prefix, with those that it inherits, as `InheritedProperties` has them."""
    found: dict[str, tuple[str, str]] = {}
    for source, properties in _levels(realm, table):
        for name, text in properties.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = text, source
    return found


def _levels(realm: Realm, table: v1.Table) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The catalog of a table, its namespaces from the outside, and the table, each with its properties."""
    catalog = hierarchy.catalog(realm, table.catalog_id).value
    yield f"catalog {catalog.display_name}", catalog.properties
    path = hierarchy.full_path(hierarchy.namespace(realm, table.namespace_id).value)
    for length in range(1, len(path) + 1):
        namespace = hierarchy.require_path(realm, catalog, path[:length]).value
        yield f"namespace {'.'.join(path[:length])}", namespace.properties
    yield f"table {table.display_name}", table.properties
