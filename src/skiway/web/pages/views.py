"""A view: its columns and its text, rows, lineage, who can see it, and how other tools open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from skiway.client.metastore import View, dotted
from skiway.errors import NotFound
from skiway.presentation.tables import picked
from skiway.web.pages.lineage import lineage
from skiway.web.pages.rows import preview
from skiway.web.pages.sharing import access, connect
from skiway.web.visits import Page, Visit


def view(visit: Visit) -> Page:
    """A view. The parameter `tab` chooses the tab."""
    if len(visit.names) < 3:
        raise NotFound("the address of a view names a catalog, a namespace and the view", key="page.unknown")
    tab = visit.query.get("tab", "overview")
    if tab not in TABS:
        raise NotFound(f"views have no tab {tab[:40]!r}: choose {', '.join(TABS)}", key="page.unknown")
    found = visit.lake.views.get(visit.names)
    columns = [{"name": each.name, "type": each.logical_type} for each in found.message.output_columns]
    data = {
        "path": list(visit.names),
        "name": dotted(visit.names),
        "comment": found.description or "",
        **picked(found, "rights", "dialects=sql", "created_at", "updated_at"),
        "definer": found.message.definer.subject,
        "columns": columns,
        "column_names": [each["name"] for each in columns],
        "tab": tab,
        "tabs": list(TABS),
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
