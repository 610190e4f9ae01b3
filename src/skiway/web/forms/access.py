"""Forms about who sees what: grants, policies with a preview, tags; and comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skiway.airport.wire.duckdb_sql import identifier
from skiway.foundation.resources import schema_name
from skiway.presentation.results import shown_rows
from skiway.web.forms.fields import (
    DESCRIPTION,
    NAME,
    REPLACE,
    TABLE,
    Field,
    Form,
    Values,
    many,
    options,
    replaces,
    segments_of,
    without_empty,
)
from skiway.web.rendering import path_to
from skiway.web.visits import Visit

OBJECTS: Final = ("table", "view", "namespace", "catalog")


def _on(kind: str, name: str) -> dict[str, str]:
    return {kind: name}


def _grant(visit: Visit, values: Values) -> str:
    kind: Any = values["kind"]
    privilege: Any = values["privilege"]
    visit.lake.grants.add(values["object"], values["grantee"], privilege, kind=kind)
    return "/access"


_MASKS: Final = ("null", "hash", "partial")


def _policy_fields(values: Values) -> dict[str, Any]:
    rule, text = values["rule"], values["sql"]
    chosen = {"row filter": {"row_filter": text}, "mask with SQL": {"mask_sql": text}}.get(
        rule, {"mask": rule.removeprefix("mask: ")}
    )
    more = {} if rule == "row filter" else {"columns": many(values["columns"])}
    return {
        "to": many(values["to"]),
        "exceptions": many(values["except"]),
        "on": many(values["on"]),
        "tags": many(values["tags"]),
        "description": values["description"] or None,
        **chosen,
        **more,
    }


def _policy(visit: Visit, values: Values) -> str:
    change = visit.lake.policies.update if replaces(values) else visit.lake.policies.create
    change(values["name"], **_policy_fields(values))
    return "/policies"


def _policy_command(values: Values) -> list[str]:
    fields = _policy_fields(values)
    return [
        *("policies", "update" if replaces(values) else "create", values["name"]),
        *options(
            ("--to", fields["to"]),
            ("--on", fields["on"]),
            ("--except", fields["exceptions"]),
            ("--filter", fields.get("row_filter", "")),
            ("--mask", fields.get("mask", "")),
            ("--mask-sql", fields.get("mask_sql", "")),
            ("--column", fields.get("columns", [])),
            ("--tag", fields["tags"]),
            ("--description", values["description"]),
        ),
    ]


def _policy_entry(values: Values) -> dict[str, Any]:
    fields = _policy_fields(values)
    is_filter = "row_filter" in fields
    mask = without_empty(kind=fields.get("mask", ""), sql=fields.get("mask_sql", ""), columns=fields.get("columns", []))
    on = [_on(_kind_by_depth(each), each) for each in fields["on"]]
    entry = without_empty(
        name=values["name"],
        to=fields["to"],
        exceptions=fields["exceptions"],
        on=on,
        tags=fields["tags"],
        row_filter=fields.get("row_filter", ""),
        mask={} if is_filter else mask,
        description=values["description"],
    )
    return {"policies": [entry]}


def _kind_by_depth(name: str) -> str:
    return ("catalog", "namespace", "table")[min(name.count("."), 2)]


def _preview(visit: Visit, values: Values) -> dict[str, Any]:
    """What a caller would see of a table under the policy."""
    catalog, *namespace, name = segments_of(values["preview"], 3)
    draft = visit.lake.policies.draft(values["name"] or "draft", **_policy_fields(values))
    place = f"{identifier(schema_name(tuple(namespace)))}.{identifier(name)}"
    roles = {"roles": values["roles"], "draft": draft}
    rows = visit.airport(catalog).call(("skiway", "seen_by"), place, values["as"], named=roles).read_all()
    return {
        **shown_rows(rows.slice(0, 20)),
        "caption": f"{values['preview']} as {values['as'] or 'a caller'} would see it",
    }


def _tag(visit: Visit, values: Values) -> str:
    visit.lake.policies.tag(values["table"], values["column"], many(values["tags"]))
    return path_to("tables", *segments_of(values["table"], 3))


def _comment(visit: Visit, values: Values) -> str:
    page = path_to(f"{values['kind']}s", *segments_of(values["object"], 3))
    if values["column"]:
        catalog, *namespace, name = segments_of(values["object"], 3)
        place = f"{identifier(schema_name(tuple(namespace)))}.{identifier(name)}"
        visit.airport(catalog).call(("skiway", "comment_on"), place, values["column"], values["text"]).read_all()
        return page
    objects: Any = {"table": visit.lake.tables, "view": visit.lake.views}[values["kind"]]
    objects.update(values["object"], description=values["text"])
    return page


def _comment_command(values: Values) -> list[str]:
    view = ["--view"] if values["kind"] == "view" else []
    return ["tables", "comment", values["object"], values["text"], *options(("--column", values["column"])), *view]


CALLERS: Final = "user:<subject>, role:<name>, group:<name> or everyone"

ACCESS_FORMS: Final[Mapping[str, Form]] = {
    "grant": Form(
        "Grant a privilege",
        "Grants a privilege on an object and everything in it. manage includes write, which includes read.",
        (
            Field("kind", "Kind of object", choices=OBJECTS),
            Field("object", "Object", hint="its full name, such as lake.sales.people"),
            Field("grantee", "To", hint="user:<subject> or role:<name>"),
            Field("privilege", "Privilege", choices=("read", "write", "manage")),
        ),
        _grant,
        lambda values: [
            "grants",
            "create",
            values["object"],
            "--to",
            values["grantee"],
            "--privilege",
            values["privilege"],
            "--kind",
            values["kind"],
        ],
        lambda values: {
            "grants": [
                {"to": values["grantee"], "privilege": values["privilege"], "on": _on(values["kind"], values["object"])}
            ]
        },
        {},
        "Grant",
    ),
    "policy": Form(
        "Create a policy",
        "A policy hides rows, or replaces values. It holds from the next statement on.",
        (
            NAME,
            Field("to", "For", hint=CALLERS, many=True),
            Field("except", "Except", hint="callers whom it does not restrict", required=False, many=True),
            Field("on", "On", hint="objects; empty for the whole account", required=False, many=True),
            Field("rule", "Rule", choices=("mask: hash", "mask: null", "mask: partial", "mask with SQL", "row filter")),
            Field("sql", "SQL", hint="of a row filter or a mask, such as region = caller('region')", required=False),
            Field("columns", "Columns", hint="to mask; * stands for any characters", required=False, many=True),
            Field("tags", "Tags", hint="columns with these tags", required=False, many=True),
            REPLACE,
            DESCRIPTION,
            Field("preview", "Preview on table", hint="catalog.namespace.table", required=False),
            Field("as", "As user", hint="the subject of somebody's token", required=False),
            Field("roles", "With roles", required=False, many=True),
        ),
        _policy,
        _policy_command,
        _policy_entry,
        {"preview": ("Preview", _preview)},
    ),
    "tag": Form(
        "Tag a column",
        "Tags replace those of the column. Policies can name tags instead of columns.",
        (
            TABLE,
            Field("column", "Column"),
            Field("tags", "Tags", hint="such as pii; empty removes them", required=False, many=True),
        ),
        _tag,
        lambda values: ["policies", "tag", values["table"], values["column"], *many(values["tags"])],
        lambda values: {"tags": [{"table": values["table"], "columns": {values["column"]: many(values["tags"])}}]},
        {},
        "Tag",
    ),
    "comment": Form(
        "Comment on a table, column or view",
        "Everybody who sees the object sees its comment.",
        (
            Field("kind", "Kind", choices=("table", "view")),
            Field("object", "Object", hint="its full name"),
            Field("column", "Column", hint="of a managed table; empty for the object itself", required=False),
            Field("text", "Comment", "area", required=False),
        ),
        _comment,
        _comment_command,
        None,
        {},
        "Save",
    ),
}
