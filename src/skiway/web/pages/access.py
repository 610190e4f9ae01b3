"""Who may see what, and who did what: accounts, tokens, grants, policies, and the audit log."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from skiway.web.pages.system_tables import system_rows
from skiway.web.visits import Page, Visit

__all__ = ["access", "accounts", "audit", "policies", "tokens"]

MAX_RECORDS: Final = 200


def accounts(visit: Visit) -> Page:
    """The accounts that the visitor may see: all of them for operators, otherwise the own one."""
    found = [
        {
            "name": each.name,
            "id": str(each.id),
            "comment": each.description or "",
            "tags": dict(each.tags),
            "created_at": each.created_at if not each.damage else None,
            "damage": each.damage,
        }
        for each in visit.lake.accounts()
    ]
    return Page("accounts.html", "Accounts", {"accounts": found})


def tokens(visit: Visit) -> Page:
    """The tokens of the account, for its administrators. The server does not know the tokens themselves."""
    return Page("tokens.html", "Tokens", {"tokens": system_rows(visit, "tokens")})


def audit(visit: Visit) -> Page:
    """The newest calls of the account, for its administrators; `q` selects those that contain a text."""
    text = visit.query.get("q", "").strip().lower()
    fields = ("category", "operation", "caller", "outcome", "details")
    found = [
        each
        for each in system_rows(visit, "audit")
        if not text or any(text in (each[name] or "").lower() for name in fields)
    ]
    return Page("audit.html", "Audit log", {"records": found[:MAX_RECORDS], "found": len(found), "filter": text})


def access(visit: Visit) -> Page:
    """All grants of the account, with the names of their objects where the visitor may see them."""
    grants = list(visit.lake.grants())
    known = visit.lake.search.with_ids(str(each.object_id) for each in grants)
    found = [
        {**_record(each), "path": list(on.path) if (on := known.get(str(each.object_id))) else []} for each in grants
    ]
    return Page("access.html", "Grants", {"grants": found})


def policies(visit: Visit) -> Page:
    """All policies of the account."""
    found = [_record(each) for each in visit.lake.policies()]
    return Page("policies.html", "Policies", {"policies": found})


def _record(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if not field.name.startswith("_")
    }
