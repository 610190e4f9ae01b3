"""The groups of pages on the left side, and which of them a page belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from skiway.foundation.resources import PLAIN


@dataclass(frozen=True, slots=True)
class Entry:
    """A link to a page. `also` are kinds of pages that belong to it, which have no links of their own."""

    name: str
    kind: str
    """The first part of the path of the page; empty for the home page."""
    also: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Where the link leads."""
        return f"/{self.kind}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The first parts of the paths of its pages."""
        return (self.kind, *self.also)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of pages, with the name of its icon. Its link leads to the first one."""

    name: str
    icon: str
    entries: tuple[Entry, ...]


OBJECTS: Final = ("catalogs", "tables", "views")
"""The kinds of pages about objects in the tree, whose names are in the paths."""

GROUPS: Final = (
    Group("Explore", "compass", (Entry("Home", "", (*OBJECTS, "search")), Entry("Branches", "branches"))),
    Group("SQL", "terminal", (Entry("Workbench", "sql"),)),
    Group(
        "Pipelines",
        "workflow",
        (Entry("Pipelines", "pipelines"), Entry("Connectors", "connectors"), Entry("Jobs", "jobs")),
    ),
    Group(
        "Activity",
        "activity",
        (
            Entry("Changes", "events"),
            Entry("Query history", "history"),
            Entry("Running queries", "queries"),
            Entry("Audit", "audit"),
        ),
    ),
    Group(
        "Operate",
        "sliders-horizontal",
        (
            Entry("Health", "health"),
            Entry("Grants", "access"),
            Entry("Policies", "policies"),
            Entry("Webhooks", "webhooks"),
            Entry("Tokens", "tokens"),
            Entry("Accounts", "accounts"),
            *(Entry(resource.plural.capitalize(), resource.plural) for resource in PLAIN),
            Entry("Settings", "settings"),
        ),
    ),
)


def place_of(kind: str) -> tuple[str, str]:
    """The group of a kind of page and the path of its entry; empty if the page is in none."""
    return next(
        ((group.name, entry.path) for group in GROUPS for entry in group.entries if kind in entry.kinds), ("", "")
    )
