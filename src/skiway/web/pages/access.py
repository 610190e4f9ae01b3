"""Who may see what: grants and policies."""

from __future__ import annotations

import dataclasses
from typing import Any

from skiway.web.visits import Page, Visit

__all__ = ["access", "policies"]


def access(visit: Visit) -> Page:
    """All grants of the account."""
    found = [_record(each) for each in visit.lake.grants()]
    return Page("access.html", "Grants", {"grants": found})


def policies(visit: Visit) -> Page:
    """All policies of the account."""
    found = [_record(each) for each in visit.lake.policies()]
    return Page("policies.html", "Policies", {"policies": found})


def _record(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if not field.name.startswith("_")
    }
