"""Who can see a table or view, and why; and how other tools open it."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from skiway.airport.wire.duckdb_sql import attach_statement, identifier, secret_statement
from skiway.client.metastore import Grant, Table, View
from skiway.presentation.tables import picked
from skiway.web.visits import Visit, optional, system_rows

ROLES: Final = (
    ("role:administrator, role:developer", "read, write and manage", "the role may do everything in the account"),
    ("callers without a role", "read", "without a role, callers read everything that policies show them"),
)
"""Who has access without a grant."""


def access(visit: Visit, found: Table | View) -> dict[str, Any]:
    """Roles, the grants on the object and on what contains it, and the policies for it. Each part says why it is missing."""
    kind, names = found.kind, visit.names
    above = [("namespace", names[:depth]) for depth in range(len(names) - 1, 1, -1)]
    places = [(kind, names), *above, ("catalog", names[:1])]
    grants, no_grants = list[dict[str, Any]](), ""
    for on, path in places:
        listed, why = optional(partial(_grants, visit, path, on))
        no_grants = no_grants or why if on == kind else no_grants
        grants += [
            {**picked(each, "grantee", "privilege", "created_at"), "kind": on, "path": path} for each in listed or ()
        ]
    policies, no_policies = optional(lambda: _policies(visit, found, names))
    tokens, _ = optional(lambda: [each for each in system_rows(visit, "tokens") if each["state"] == "active"])
    return {
        "roles": [dict(zip(("who", "may", "why"), each, strict=True)) for each in ROLES],
        "tokens": [picked_row(each, "name", "roles", "last_used_at") for each in tokens or ()],
        "grants": grants,
        "no_grants": no_grants,
        "policies": policies,
        "no_policies": no_policies,
    }


def _grants(visit: Visit, path: tuple[str, ...], kind: Any) -> list[Grant]:
    return list(visit.lake.grants(path, kind=kind))


def picked_row(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some values of a row by their names."""
    return {name: row[name] for name in names}


def _policies(visit: Visit, found: Table | View, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The policies that hold for the object: by its id, by that of its catalog or namespace, or by a tag."""
    lake = visit.lake
    ids = {str(found.id): f"this {found.kind}", found.message.namespace_id.id: "its namespace"}
    ids[found.message.catalog_id.id] = f"the catalog {names[0]}"
    tagged = optional(lambda: lake.policies.tags(found))[0] or {} if isinstance(found, Table) else {}
    tags = {tag for each in tagged.values() for tag in each}
    shown = []
    for policy in lake.policies():
        places = [ids[str(object_id)] for _, object_id in policy.objects if str(object_id) in ids]
        if policy.objects and not places:
            continue
        common = sorted(tags & set(policy.tags))
        if policy.tags and not common and found.kind == "table":
            continue
        why = f"on {', '.join(places)}" if places else "in the whole account"
        why += f", for columns with the tag {', '.join(common)}" if common else ""
        shown.append({**picked(policy, "name", "row_filter", "mask", "subjects", "exceptions", "columns"), "why": why})
    return shown


def connect(visit: Visit) -> dict[str, Any]:
    """Snippets to copy, which read the table or view."""
    path, location = visit.table_path(), visit.clients.location()
    catalog, schema, table = path.catalog, path.schema, path.name
    alias = re.sub(r"\W", "_", catalog)
    token = ', token="<your token>"' if visit.visitor.token else ""
    name = ".".join(map(identifier, (catalog, schema, table)))
    secret = [secret_statement(location, None)] if token else []
    duckdb = ["INSTALL airport FROM community;", "LOAD airport;", *secret, attach_statement(catalog, location)]
    rest = {"type": "rest", "uri": f"{visit.origin}/iceberg", "warehouse": catalog}
    rest |= {"token": "<your token>"} if token else {}
    spark = [
        f"spark.sql.catalog.{alias}=org.apache.iceberg.spark.SparkCatalog",
        *(f"spark.sql.catalog.{alias}.{key}={value}" for key, value in rest.items()),
    ]
    python = (
        "from skiway.client import AirportClient\n\n"
        f"with AirportClient({json.dumps(location)}, {json.dumps(catalog)}{token}) as lake:\n"
        f"    rows = lake.scan(({json.dumps(schema)}, {json.dumps(table)}), limit=10).read_all()"
    )
    pyiceberg = (
        "from pyiceberg.catalog import load_catalog\n\n"
        f"catalog = load_catalog({json.dumps(catalog)}, **{json.dumps(rest)})\n"
        f"catalog.load_table({json.dumps(visit.names[1:])}).scan(limit=10).to_arrow()"
    )
    address = urlsplit(location).netloc
    server: dict[str, Any] = {"command": "skiway", "args": ["mcp", "--server", address]}
    server |= {"env": {"SKIWAY_TOKEN": "<your token>"}} if token else {}
    user = "&token=<your token>" if token else ""
    encryption = "" if "tls" in urlsplit(location).scheme else "&useEncryption=false"
    texts = (
        ("DuckDB", "sql", "\n".join([*duckdb, f"FROM {name} LIMIT 10;"])),
        ("Python", "python", python),
        ("Spark", "properties", "\n".join(spark)),
        ("PyIceberg", "python", pyiceberg),
        ("JDBC", "text", f"jdbc:arrow-flight-sql://{address}/?airport-catalog={catalog}{encryption}{user}"),
        ("MCP", "json", json.dumps({"mcpServers": {catalog: server}}, indent=2)),
    )
    return {"snippets": [{"tool": tool, "language": language, "text": text} for tool, language, text in texts]}
