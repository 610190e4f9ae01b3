"""The kinds of resources in the contract: how each is declared, apart from its name and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skiway.client import Metastore
from skiway.foundation.resources import PIPELINE, POLICY, RULE, WEBHOOK, Resource
from skiway.model import v1

URL = "https://127.0.0.1/hook"
SECRET = "a secret of many bytes"
TABLE = "lake.sales.people"
COLUMNS = '{"type": "struct", "fields": []}'


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of resource.

    The client takes `arguments` after the name, and `fields` by their names; `spec` returns the same for the message. `parent` is the
    full name of what contains it. `command` are the arguments of the `create` command after the name; None if it and that for
    deletion do not exist, or need more than a metastore. `declaration` are the keys in a setup file.
    """

    name: str
    plural: str
    arguments: tuple[Any, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    spec: Callable[[Metastore], Mapping[str, Any]] = lambda _: {}
    parent: str = ""
    command: tuple[str, ...] | None = ()
    declaration: Mapping[str, Any] = field(default_factory=dict)
    has_update_command: bool = True
    is_public: bool = False
    """Whether callers who may only read see it."""

    def __str__(self) -> str:
        return self.name

    def message(self, template: str) -> type[Any]:
        """The message with this name, in which `{}` is the kind, and `{}s` several of it."""
        found: type[Any] = getattr(v1, self.method(template))
        return found

    def method(self, template: str) -> str:
        return template.replace("{}s", self.plural.title()).replace("{}", self.name.title())

    def full(self, name: str) -> str:
        """The name in commands, in setup files and of the client."""
        return f"{self.parent}.{name}" if self.parent else name

    def text(self, shown: Any) -> str | None:
        """The description in a message, in a record of the client, or in the output of a command."""
        found: str | None = shown["description"] if isinstance(shown, dict) else shown.description
        return found or None


@dataclass(frozen=True, eq=False)
class Pipelines(Kind):
    """Pipelines: the name and the description are in their files."""

    def text(self, shown: Any) -> str | None:
        if isinstance(shown, dict):
            return None  # commands show the names of files only
        return shown.files["pipeline.yml"].partition("description: ")[2].strip() or None


def pipeline_files(name: str, description: str) -> dict[str, str]:
    head = f"name: {name}\ncatalog: lake\nnamespace: sales\ndescription: {description}\n"
    return {"pipeline.yml": head, "copy.sql": "SELECT * FROM people"}


def write_pipeline(folder: Path, name: str, description: str) -> Path:
    """The folder of a pipeline."""
    target = folder / "pipeline"
    target.mkdir(exist_ok=True)
    for path, text in pipeline_files(name, description).items():
        (target / path).write_text(text)
    return target


def _in_namespace(lake: Metastore) -> Mapping[str, Any]:
    namespace = lake.namespaces.get("lake.sales").message
    return {"catalog_id": namespace.catalog_id, "namespace_id": namespace.resource_id}


def _of(resource: Resource, **more: Any) -> Kind:
    return (Pipelines if resource is PIPELINE else Kind)(resource.name, resource.plural, **more)


WEBHOOKS = _of(
    WEBHOOK,
    fields={"url": URL, "events": ["*"], "secret": SECRET},
    spec=lambda _: {"url": URL, "events": ["*"], "secret": SECRET},
    command=(URL, "--event", "*", "--secret-env", "CONTRACT_SECRET"),
    declaration={"url": URL, "events": ["*"], "secret": {"env": "CONTRACT_SECRET"}},
)
POLICIES = _of(
    POLICY,
    fields={"to": ["user:bob"], "mask": "null", "columns": ["secret*"]},
    spec=lambda _: {"subjects": ["user:bob"], "mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["secret*"])},
    command=("--to", "user:bob", "--mask", "null", "--column", "secret*"),
    declaration={"to": ["user:bob"], "mask": {"kind": "null", "columns": ["secret*"]}},
)
RULES = _of(
    RULE,
    arguments=(TABLE, "row_count", {"min": 1}),
    spec=lambda lake: {
        "table_id": lake.tables.get(TABLE).message.resource_id,
        "check": v1.RuleCheck(row_count=v1.RowCountCheck(min=1)),
    },
    command=(TABLE, "row_count", "--min", "1"),
    declaration={"table": TABLE, "row_count": {"min": 1}},
    is_public=True,
)
PIPELINES = _of(PIPELINE)
CATALOGS = Kind("catalog", "catalogs", has_update_command=False, is_public=True)
NAMESPACES = Kind(
    "namespace",
    "namespaces",
    spec=lambda lake: {"catalog_id": lake.catalogs.get("lake").message.resource_id},
    parent="lake",
    has_update_command=False,
    is_public=True,
)
TABLES = Kind(
    "table",
    "tables",
    fields={"schema": COLUMNS},
    spec=lambda lake: {"schema_json": COLUMNS, **_in_namespace(lake)},
    parent="lake.sales",
    command=None,
    has_update_command=False,
    is_public=True,
)
VIEWS = Kind(
    "view",
    "views",
    fields={"sql": "SELECT 1 AS x"},
    spec=lambda lake: {"sql_definitions": [v1.ViewSql(sql="SELECT 1 AS x", dialect="duckdb")], **_in_namespace(lake)},
    parent="lake.sales",
    command=None,
    declaration={"sql": {"duckdb": "SELECT 1 AS x"}},
    has_update_command=False,
    is_public=True,
)
CONNECTORS = Kind(
    "connector",
    "connectors",
    fields={"kind": "parquet", "uri": "/srv/files", "catalog": "lake"},
    spec=lambda _: {
        "kind": v1.CK_PARQUET,
        "uri": "/srv/files",
        "destination": v1.ConnectorDestination(catalog_display_name="lake"),
    },
    command=("--kind", "parquet", "--uri", "/srv/files", "--catalog", "lake"),
    declaration={"kind": "parquet", "uri": "/srv/files", "destination": {"catalog": "lake"}},
)
DESCRIBED: tuple[Kind, ...] = (WEBHOOKS, POLICIES, RULES, PIPELINES)
"""The kinds with a description in `skiway.foundation.resources`."""

KINDS = (*DESCRIBED, CATALOGS, NAMESPACES, TABLES, VIEWS, CONNECTORS)
