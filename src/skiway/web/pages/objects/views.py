"""A view: its columns and its text, rows, lineage, who can see it, and how other tools open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from skiway.client.metastore import View, dotted
from skiway.errors import NotFound
from skiway.presentation.tables import picked
from skiway.web.pages.objects.lineage import lineage
from skiway.web.pages.objects.rows import preview
from skiway.web.pages.objects.sharing import access, connect
from skiway.web.visits import Page, Visit


def view(visit: Visit) -> Page:
    """A view. The parameter `tab` chooses the tab."""
    if len(visit.names) < 3:
        raise NotFound("the address of a view names a catalog, a namespace and the view", key="page.unknown")
    tab, tabs = visit.query.get("tab", "overview"), [each for each in TABS if not (visit.branch and each == "access")]
    if tab not in tabs:
        raise NotFound(f"views have no tab {tab[:40]!r}: choose {', '.join(tabs)}", key="page.unknown")
    found = visit.there.views.get(visit.names)
    columns = [{"name": each.name, "type": each.logical_type} for each in found.message.output_columns]
    data = {
        "path": list(visit.names),
        "name": dotted(visit.names),
        "comment": found.description or "",
        **picked(found, "rights", "dialects=sql", "created_at", "updated_at"),
        "definer": found.message.definer.subject,
        "columns": columns,
        "column_names": [each["name"] for each in columns],
        "branch": visit.branch,
        "tab": tab,
        "tabs": tabs,
        "at": None,
        **TABS[tab](visit, found),
    }
    return Page("view.html", ".".join(visit.names), data)


TABS: Final[Mapping[str, Callable[[Visit, View], dict[str, Any]]]] = {
    "overview": lambda *_: {},
    "rows": lambda visit, found: {"preview": preview(visit, {each.name for each in found.message.output_columns})},
    "lineage": lambda visit, _: {"lineage": lineage(visit)},
    "access": lambda visit, found: {"access": access(visit, found)},
    "connect": lambda visit, _: {"connect": connect(visit)},
}
"""The tabs, and what returns the data of each."""
