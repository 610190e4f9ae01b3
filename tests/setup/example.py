"""A setup with every kind of object, every key, and hostile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

HOSTILE = 'it\'s "a" <b>.ü/%20;--'
"""A name of one segment that needs quotes everywhere."""
QUOTED = '"' + HOSTILE.replace('"', '""') + '"'
CREDENTIAL = "SKIWAY_CREDENTIAL_IT_S_A_B_20"
"""The variable with the credentials of the connector with the hostile name."""
SECRET = "s3cr3t-canary"
WEBHOOK = "SKIWAY_WEBHOOK_IT_S_A_B_20"
SIGNING = {"SKIWAY_WEBHOOK_ALERTS": "a-canary-that-signs", WEBHOOK: "a-canary-that-signs"}
"""The variables with the secrets of webhooks."""


MAINTENANCE = {"maintenance.optimize": "auto", "maintenance.expire": "auto", "maintenance.expire.keep-last": "3"}


def everything(folder: Path) -> dict[str, Any]:
    """The setup, with a connector to Parquet files in `folder`."""
    return {
        "version": 1,
        "account": {
            "description": "The account: of tests",
            "tags": {"team": "data"},
            "quotas": {"caller": {"scans": 7, "per_second": 1250.5}, "account": {"bytes_per_second": 200_000_000}},
        },
        "catalogs": [
            {"name": "lake", "description": "Two lines\nof text\n", "properties": {"scan.mode": "auto"}},
            {
                "name": HOSTILE,
                "description": "# not a comment",
                "properties": {"owner": "on", "n": "1e3", "z": "null"},
                "protected": True,
                "mergers": ["role:publisher", f"user:{HOSTILE}"],
                "required_rules": ["*"],
            },
            {"name": "mirror", "connector_ref": "raw", "policy_ref": "x"},
        ],
        "namespaces": [
            {"name": "lake.sales", "description": "yes", "policy_ref": "p", "properties": {"a": "b", **MAINTENANCE}},
            {"name": "lake.sales.deep"},
            {"name": f"{QUOTED}.{QUOTED}"},
            {"name": "mirror.raw"},
        ],
        "tables": [
            {
                "name": "lake.sales.people",
                "description": "everybody",
                "properties": {"maintenance.expire": "off"},
                "columns": [
                    {"name": "id", "type": "long", "required": True, "doc": "a number"},
                    {"name": "email", "type": "string"},
                    {"name": "price", "type": "decimal(10,2)"},
                    {"name": "nested", "type": {"type": "struct", "fields": NESTED}},
                ],
            },
            {"name": f"{QUOTED}.{QUOTED}.{QUOTED}", "columns": [{"name": HOSTILE, "type": "string"}]},
            {
                "name": "lake.sales.checked",
                "columns": [
                    {"name": "id", "type": "long"},
                    {"name": "email", "type": "string"},
                    {"name": "price", "type": "decimal(10,2)"},
                ],
            },
        ],
        "connectors": [
            {
                "name": "raw",
                "kind": "parquet",
                "uri": str(folder),
                "description": "files",
                "destination": {
                    "catalog": "mirror",
                    "namespace": "raw",
                    "tables": [{"source": "people", "name": "persons"}],
                },
                "source": {
                    "include_tables": ["people", "orders"],
                    "exclude_tables": ["tmp_*"],
                    "columns": ["id", "#2"],
                    "exclude_columns": ["other"],
                },
                "schedule": {
                    "every": "90m",
                    "not_before": "2030-01-31T08:00:00Z",
                    "max_parallel": 3,
                    "mode": "full",
                    "snapshots": "latest",
                    "latest": 2,
                },
            },
            {
                "name": HOSTILE,
                "kind": "iceberg",
                "uri": "http://127.0.0.1:1/",
                "destination": {"catalog": "mirror"},
                "source": {"namespace": 'a."b.c"', "table": "one"},
                "properties": {"warehouse": "w"},
                "auth": {
                    "scheme": "oauth2",
                    "properties": {"audience": "x"},
                    "header_hints": {"x-region": "eu"},
                    "credentials": {"env": CREDENTIAL},
                },
                "paused": True,
                "schedule": {"enabled": True, "every": "1d"},
            },
            {
                "name": "copied",
                "kind": "csv",
                "uri": str(folder),
                "destination": {"catalog": "lake", "namespace": "copies"},
                "copy": {
                    "mode": "upsert",
                    "key_columns": ["id"],
                    "schema_changes": "reject",
                    "partition_by": ["day(ts)"],
                    "sort_by": "ts DESC, id",
                    "expect": [{"unique": ["id"]}, {"accepted_values": {"column": "n", "values": [1, 2]}}],
                    "tables": {
                        "log.2026": {"mode": "append", "partition_by": ["year(ts)"], "schema_changes": "follow"}
                    },
                },
            },
        ],
        "views": [
            {
                "name": "lake.sales.adults",
                "description": "a view",
                "sql": {"duckdb": "SELECT id FROM lake.sales.people", "spark": "SELECT id FROM people"},
                "rights": "definer",
                "reads": ["lake.sales.people"],
                "columns": [{"name": "id", "type": "BIGINT", "nullable": False}],
                "search_path": ["sales"],
                "properties": {"x": "1"},
            },
            {"name": f"{QUOTED}.{QUOTED}.v", "sql": {"duckdb": "SELECT 'é -- \u2028'\n\tAS x \n"}},
        ],
        "tags": [{"table": "lake.sales.people", "columns": {"email": ["pii", "gdpr"]}}],
        "policies": [
            {
                "name": "hide",
                "to": ["everyone"],
                "exceptions": ["user:Ada:x", "role:Admin"],
                "tags": ["pii"],
                "mask": {"kind": "null"},
            },
            {
                "name": "only eu",
                "description": "rows",
                "to": ["role:analyst"],
                "on": [{"table": "lake.sales.people"}],
                "row_filter": "email LIKE '%.eu'",
            },
            {
                "name": HOSTILE,
                "to": ["group:x"],
                "on": [{"namespace": "lake.sales"}, {"view": "lake.sales.adults"}],
                "mask": {"sql": "'***'", "columns": ["id*"]},
            },
        ],
        "rules": [
            {
                "name": "rows",
                "table": "lake.sales.checked",
                "severity": "warning",
                "description": "enough",
                "row_count": {"min": 1, "max": 1000, "max_decrease": 0.5, "max_increase": 2.0},
            },
            {"name": "nulls", "table": "lake.sales.checked", "null_share": {"column": "email", "max": 0.25}},
            {"name": "ids", "table": "lake.sales.checked", "distinct_count": {"column": "id", "min": 0, "max": 9}},
            {"name": "prices", "table": "lake.sales.checked", "range": {"column": "price", "min": "0", "max": "9.50"}},
            {
                "name": "median",
                "table": "lake.sales.checked",
                "estimates_only": True,
                "quantile": {"column": "price", "quantile": 0.5, "max": "5"},
            },
            {"name": "fresh", "table": "lake.sales.checked", "freshness": {"max_age": "90m"}},
            {
                "name": "emails",
                "table": "lake.sales.checked",
                "allowed_values": {"column": "email", "values": ["a@x", "no", "1"]},
            },
            {"name": "key", "table": "lake.sales.checked", "unique": {"columns": ["id", "email"]}},
            {"name": "schema", "table": "lake.sales.checked", "schema": {"allow_added": True}},
            {
                "name": HOSTILE,
                "table": f"{QUOTED}.{QUOTED}.{QUOTED}",
                "schema": {"columns": {HOSTILE: "string"}},
            },
        ],
        "pipelines": [
            {
                "name": name,
                "files": {
                    "pipeline.yml": json.dumps({"name": name, "catalog": "lake", "namespace": "sales"}),
                    "marts/ids.sql": f"-- @description: {HOSTILE}\nSELECT id\nFROM people\nWHERE id > 3",
                    "marts/coded.py": (
                        "from pyspark import pipelines as dp\n\n\n"
                        f"@dp.materialized_view(comment={HOSTILE!r})\n"
                        f"def coded():\n\treturn spark.table('ids')  # {HOSTILE}: {{}}\n"
                    ),
                },
            }
            for name in ("derived", HOSTILE)
        ],
        "webhooks": [
            {
                "name": "alerts",
                "url": "https://127.0.0.1/hook",
                "events": ["rule.failed", "sync.*"],
                "secret": {"env": "SKIWAY_WEBHOOK_ALERTS"},
                "paused": True,
                "description": "text",
            },
            {
                "name": HOSTILE,
                "url": "http://127.0.0.1:9/x",
                "events": ["*"],
                "paused": True,
                "secret": {"env": WEBHOOK},
            },
        ],
        "grants": [
            {"to": "role:Analyst", "privilege": "read", "on": {"namespace": "lake.sales"}},
            {"to": f"user:{HOSTILE}", "privilege": "manage", "on": {"catalog": HOSTILE}},
            {"to": "user:ada", "privilege": "write", "on": {"table": "lake.sales.people"}},
            {"to": "user:ada", "privilege": "read", "on": {"view": "lake.sales.adults"}},
        ],
    }


NESTED: list[dict[str, Any]] = [
    {"name": "tags", "type": {"type": "list", "element": "string", "element_required": True}},
    {"name": "counts", "type": {"type": "map", "key": "string", "value": "int"}},
]


def text_of(setup: dict[str, Any]) -> str:
    """The setup as YAML, written without the code under test."""
    text: str = yaml.safe_dump(setup, sort_keys=False, allow_unicode=True)
    return text
