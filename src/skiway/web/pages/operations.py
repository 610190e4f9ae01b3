"""How the lake is operated: queries, webhooks, accounts, tokens, access, the audit log and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from skiway.client.metastore import LakeObject, Query, dotted
from skiway.client.metastore.governance import Policy
from skiway.errors import InvalidArgument
from skiway.foundation.resources import Resource
from skiway.presentation.tables import picked
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit, system_rows

MAX_ROWS: Final = 100


def queries(visit: Visit) -> Page:
    """Queries that hold leases on snapshots."""
    found = [_query(each) for each in islice(visit.lake.queries(), MAX_ROWS)]
    return Page("queries.html", "Queries", {"queries": found})


def end_query(visit: Visit) -> Redirect:
    """End a query, which releases its leases."""
    visit.lake.queries.get(visit.name("query")).end(commit=False)
    return Redirect(path_to("queries"))


def settings(visit: Visit) -> Page:
    """The settings of the server that the visitor may see. Secrets are not among them."""
    return Page("settings.html", "Settings", {"settings": system_rows(visit, "settings")})


def _query(query: Query) -> dict[str, Any]:
    facts = picked(query, "id", "state", "kind", "caller", "created_at", "expires_at")
    return {**facts, "tables": len(query.snapshots)}


MAX_WEBHOOKS: Final = 50
MAX_LETTERS: Final = 100


def webhooks(visit: Visit) -> Page:
    """All webhooks, or one of them with the events that were given up."""
    lake = visit.lake
    if not visit.names:
        names = [each.name for each in islice(lake.webhooks(), MAX_WEBHOOKS)]
        return Page("webhooks.html", "Webhooks", {"webhooks": list(map(lake.webhooks.get, names))})  # with their state
    webhook = lake.webhooks.get(visit.name("webhook"))
    letters = lake.webhooks.dead_letters(webhook.name)
    data = {"webhook": webhook, "letters": letters[:MAX_LETTERS], "more": max(len(letters) - MAX_LETTERS, 0)}
    return Page("webhook.html", webhook.name, data)


def change_webhook(visit: Visit) -> Redirect:
    """Pause or resume a webhook, or send what was given up again."""
    name, action = visit.name("webhook"), visit.form.get("action", "")
    match action:
        case "pause" | "resume":
            visit.lake.webhooks.update(name, paused=action == "pause")
        case "redeliver":
            visit.lake.webhooks.redeliver(name)
        case _:
            message = f"{action[:40]!r} is not an action: use pause, resume or redeliver"
            raise InvalidArgument(message, key="form.invalid")
    return Redirect(path_to("webhooks", name))


MAX_RECORDS: Final = 200


def accounts(visit: Visit) -> Page:
    """The accounts that the visitor may see: all of them for operators, otherwise the own one."""
    found = [
        {**picked(account, "name", "id", "tags", "created_at", "damage"), "comment": account.description or ""}
        for account in visit.lake.accounts()
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
    known = visit.lake.search.with_ids(str(grant.object_id) for grant in grants)
    paths = [list(on.path) if (on := known.get(str(grant.object_id))) else [] for grant in grants]
    data = [{**asdict(grant), "path": path} for grant, path in zip(grants, paths, strict=True)]
    return Page("access.html", "Grants", {"grants": data})


def policies(visit: Visit) -> Page:
    """All policies of the account."""
    found = list(visit.lake.policies())
    known = visit.lake.search.with_ids(str(object_id) for each in found for _, object_id in each.objects)
    return Page("policies.html", "Policies", {"policies": [_policy(each, known) for each in found]})


def _policy(policy: Policy, known: Mapping[str, LakeObject]) -> dict[str, Any]:
    """A policy with the names of its objects, and what the form for changing it contains; nothing if an object is not known."""
    on = [dotted(known[str(each)].path) if str(each) in known else "" for _, each in policy.objects]
    built_in = policy.mask in ("null", "hash", "partial")
    rule = "row filter" if policy.mask is None else f"mask: {policy.mask}" if built_in else "mask with SQL"
    form = {
        **picked(policy, "name", "description"),
        **{name: ", ".join(getattr(policy, name)) for name in ("columns", "tags")},
        "to": ", ".join(policy.subjects),
        "except": ", ".join(policy.exceptions),
        "on": ", ".join(on),
        "rule": rule,
        "sql": policy.row_filter or ("" if built_in else policy.mask) or "",
        "replace": "yes",
    }
    shown = {name: value for name, value in form.items() if value}
    return {
        **asdict(policy),
        "on": [each or "(hidden)" for each in on],
        "form": shown if all(on) and not policy.damage else {},
    }


def plain(visit: Visit, *, resource: Resource) -> Page:
    """All resources of a kind without code of its own."""
    rows = [picked(record, *resource.columns, "damage") for record in getattr(visit.lake, resource.plural)()]
    data = {"kind": resource.name, "plural": resource.plural, "columns": resource.columns, "rows": rows}
    return Page("plain.html", resource.plural.title(), data)
