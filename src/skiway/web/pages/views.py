"""Views: their columns, and their text in each dialect."""

from __future__ import annotations

from skiway.errors import NotFound
from skiway.web.visits import Page, Visit

__all__ = ["view"]


def view(visit: Visit) -> Page:
    """A view."""
    if len(visit.names) < 3:
        raise NotFound("the address of a view names a catalog, a namespace and the view", key="page.unknown")
    found = visit.lake.views.get(visit.names)
    data = {
        "path": list(visit.names),
        "comment": found.description or "",
        "rights": found.rights,
        "dialects": dict(found.sql),
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }
    return Page("view.html", ".".join(visit.names), data)
