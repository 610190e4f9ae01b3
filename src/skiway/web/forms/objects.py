"""Forms about what the lake contains: views, quality rules, webhooks, connectors and their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skiway.airport.wire.duckdb_sql import identifier
from skiway.client.metastore.governance import RULE_KINDS
from skiway.errors import InvalidArgument
from skiway.foundation.clock import DURATION_SYNTAX, parse_duration
from skiway.foundation.resources import schema_name
from skiway.model import v1
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


def _view(visit: Visit, values: Values) -> str:
    catalog, *namespace, name = segments_of(values["name"], 3)
    place = f"{identifier(schema_name(tuple(namespace)))}.{identifier(name)}"
    named = {"replace": replaces(values), "rights": values["rights"], "comment": values["description"]}
    visit.airport(catalog).call(("skiway", "create_view"), place, values["sql"], named=named).read_all()
    return path_to("views", catalog, *namespace, name)


def _view_entry(values: Values) -> dict[str, Any]:
    rights = values["rights"] if values["rights"] != "invoker" else ""
    entry = without_empty(
        name=values["name"], sql={"duckdb": values["sql"]}, description=values["description"], rights=rights
    )
    return {"views": [entry]}


_COLUMNS: Final = ("unique",)


def _rule_values(values: Values) -> dict[str, Any]:
    kind, found = values["kind"], dict[str, Any]()
    columns = many(values["column"])
    if columns:
        found |= {"columns": columns} if kind in _COLUMNS else {"column": columns[0]}
    for name in ("min", "max"):
        if values[name]:
            found[name] = _number(values[name], is_text=kind in ("range", "quantile"))
    found |= {"max_age": values["max_age"]} if values["max_age"] else {}
    found |= {"values": many(values["values"])} if values["values"] else {}
    return found


def _number(text: str, *, is_text: bool) -> Any:
    if is_text:
        return text
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        raise InvalidArgument(f"{text[:40]!r} is not a number", key="form.invalid") from None


def _rule(visit: Visit, values: Values) -> str:
    severity: Any = values["severity"]
    more: Any = {"description": values["description"]} if values["description"] else {}
    visit.lake.rules.create(
        values["name"], values["table"], values["kind"], _rule_values(values), severity=severity, **more
    )
    return f"{path_to('tables', *segments_of(values['table'], 3))}?tab=quality"


def _rule_command(values: Values) -> list[str]:
    pairs = [
        ("--column", many(values["column"])),
        ("--min", values["min"]),
        ("--max", values["max"]),
        ("--max-age", values["max_age"]),
    ]
    more = [("--value", many(values["values"])), ("--description", values["description"])]
    severity = ["--severity", "warning"] if values["severity"] == "warning" else []
    return ["rules", "create", values["name"], values["table"], values["kind"], *options(*pairs, *more), *severity]


def _rule_entry(values: Values) -> dict[str, Any]:
    severity = values["severity"] if values["severity"] != "error" else ""
    entry = without_empty(
        name=values["name"], table=values["table"], severity=severity, description=values["description"]
    )
    return {"rules": [{**entry, values["kind"]: _rule_values(values)}]}


def _webhook(visit: Visit, values: Values) -> str:
    more: Any = {name: values[name] for name in ("description", "secret") if values[name]}
    if not (replaces(values) or values["secret"]):
        raise InvalidArgument("Secret is empty: fill it in", key="form.invalid", field="secret")
    change = visit.lake.webhooks.update if replaces(values) else visit.lake.webhooks.create
    change(values["name"], url=values["url"], events=many(values["events"]), **more)
    return path_to("webhooks", values["name"])


def _webhook_command(values: Values) -> list[str]:
    more = options(("--event", many(values["events"])), ("--description", values["description"]))
    if replaces(values):
        return ["webhooks", "update", values["name"], "--url", values["url"], *more]
    return ["webhooks", "create", values["name"], values["url"], *more, "--secret-env", "WEBHOOK_SECRET"]


def _webhook_entry(values: Values) -> dict[str, Any]:
    entry = without_empty(
        name=values["name"], url=values["url"], events=many(values["events"]), description=values["description"]
    )
    return {"webhooks": [{**entry, "secret": {"env": "WEBHOOK_SECRET"}}]}


def _interval(text: str) -> v1.ConnectorPolicy:
    found = v1.ConnectorPolicy(enabled=bool(text) and text != "never")
    if found.enabled:
        try:
            found.interval.FromTimedelta(parse_duration(text))
        except ValueError:
            raise InvalidArgument(
                f"{text[:40]!r} is not an interval: give {DURATION_SYNTAX}, or never", key="form.invalid"
            ) from None
    return found


def _connector_spec(values: Values) -> v1.ConnectorSpec:
    kind = v1.ConnectorKind.Value(f"CK_{values['kind'].upper()}")
    spec = v1.ConnectorSpec(display_name=values["name"], kind=kind, uri=values["uri"])
    spec.destination.catalog_display_name = values["catalog"]
    if values["namespace"]:
        spec.destination.namespace.segments.extend(values["namespace"].split("."))
    return spec


def _connector(visit: Visit, values: Values) -> str:
    more: dict[str, Any] = {"policy": _interval(values["every"])} if values["every"] else {}
    more |= {"description": values["description"]} if values["description"] else {}
    more |= {"namespace": values["namespace"].split(".")} if values["namespace"] else {}
    visit.lake.connectors.create(
        values["name"], kind=values["kind"], uri=values["uri"], catalog=values["catalog"], **more
    )
    return path_to("connectors", values["name"])


def _test_connection(visit: Visit, values: Values) -> dict[str, Any]:
    found = visit.lake.connectors.validate(spec=_connector_spec(values))
    return {"outcome": "The source responds." if found.ok else found.summary, "is_good": found.ok}


def _connector_command(values: Values) -> list[str]:
    pairs = [(f"--{name}", values[name]) for name in ("kind", "uri", "catalog", "namespace", "every", "description")]
    return ["connectors", "create", values["name"], *options(*pairs)]


def _connector_entry(values: Values) -> dict[str, Any]:
    destination = without_empty(catalog=values["catalog"], namespace=values["namespace"])
    schedule = {"enabled": True, "every": values["every"]} if values["every"] not in ("", "never") else {}
    entry = without_empty(
        name=values["name"],
        kind=values["kind"],
        uri=values["uri"],
        destination=destination,
        schedule=schedule,
        description=values["description"],
    )
    return {"connectors": [entry]}


def _schedule(visit: Visit, values: Values) -> str:
    policy = v1.ConnectorPolicy()
    policy.CopyFrom(visit.lake.connectors.get(values["name"]).message.policy)
    wanted = _interval(values["every"])
    policy.enabled = wanted.enabled
    policy.ClearField("interval")
    if wanted.HasField("interval"):
        policy.interval.CopyFrom(wanted.interval)
    visit.lake.connectors.update(values["name"], policy=policy)
    return path_to("connectors", values["name"])


OBJECT_FORMS: Final[Mapping[str, Form]] = {
    "view": Form(
        "Create a view",
        "The server checks the query. Names without a schema are those of the view's own namespace.",
        (
            Field("name", "Name", hint="catalog.namespace.view"),
            Field("sql", "SQL", "area"),
            Field("rights", "Rights of", choices=("invoker", "definer")),
            REPLACE,
            DESCRIPTION,
        ),
        _view,
        lambda values: [
            *("views", "create", values["name"], values["sql"]),
            *(["--replace"] if replaces(values) else []),
            *options(
                ("--rights", "" if values["rights"] == "invoker" else values["rights"]),
                ("--description", values["description"]),
            ),
        ],
        _view_entry,
        {},
    ),
    "rule": Form(
        "Create a quality rule",
        "A rule is checked after each profile of the table.",
        (
            NAME,
            TABLE,
            Field("kind", "Kind", choices=tuple(kind for kind in RULE_KINDS if kind != "schema")),
            Field("column", "Column", hint="several for the key of unique", required=False, many=True),
            Field("min", "At least", required=False),
            Field("max", "At most", required=False),
            Field("max_age", "Maximum age", hint="of freshness, such as 1d", required=False),
            Field("values", "Values", hint="of allowed_values", required=False, many=True),
            Field("severity", "Severity", choices=("error", "warning")),
            DESCRIPTION,
        ),
        _rule,
        _rule_command,
        _rule_entry,
        {},
    ),
    "webhook": Form(
        "Create a webhook",
        "Sends events to another system over HTTP.",
        (
            NAME,
            Field("url", "URL"),
            Field("events", "Events", hint="such as rule.failed, table.* or *", many=True),
            Field(
                "secret",
                "Secret",
                "password",
                hint="signs requests; at least 16 characters. Needed again if the URL changes",
                required=False,
            ),
            REPLACE,
            DESCRIPTION,
        ),
        _webhook,
        _webhook_command,
        _webhook_entry,
        {},
    ),
    "connector": Form(
        "Create a connector",
        "Mirrors the tables of a source. Sources with credentials, and copies, are created on the command line or by a setup file.",
        (
            NAME,
            Field("kind", "Kind", choices=("parquet", "delta", "iceberg", "glue", "hive", "unity", "airport")),
            Field("uri", "URI", hint="a folder of the server, an s3:// URL or the address of a catalog"),
            Field("catalog", "Catalog", hint="where its tables appear"),
            Field("namespace", "Namespace", required=False),
            Field("every", "Sync every", hint="such as 10m, 1h or 1d", required=False),
            DESCRIPTION,
        ),
        _connector,
        _connector_command,
        _connector_entry,
        {"test": ("Test connection", _test_connection)},
    ),
    "schedule": Form(
        "Schedule a connector",
        "How often a connector synchronizes by itself.",
        (Field("name", "Connector"), Field("every", "Sync every", hint="such as 10m, 1h or 1d; or never")),
        _schedule,
        lambda values: ["connectors", "update", values["name"], "--every", values["every"]],
        None,
        {},
        "Save",
    ),
}
