"""Write what is generated in the documentation: settings, metrics, commands, RPCs, errors, threats, and parts of other pages.

Figures of benchmarks are written by `python -m bench.page`, the versions in compatibility.md by `make compatibility`, and the matrix
in formats.md by `python -m formats.feature_matrix`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import typer.main

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.cli.app import LAKE, SERVER, app
from skiway.config import Setting, describe
from skiway.foundation.doors import EXPLANATIONS, statuses
from skiway.lake.system.schema import SystemSchema
from skiway.model import v1
from skiway.rest.app import ROUTES
from skiway.rpc.services import all_services
from skiway.telemetry.definitions import METRICS, Metric, prometheus_name

PROJECT: Final = Path(__file__).parents[1]
DOCS: Final = PROJECT / "docs"
THREATS: Final = PROJECT / "tests" / "security" / "threats.toml"
NO_LAKE: Final[Any] = None
"""Stands for a lake where only names and comments are read."""

TOPICS: Final = {
    "server": (
        "a server",
        ("server", "client", "quotas", "query", "sql", "metadata", "idempotency", "errors", "system", "seed"),
    ),
    "access": ("access", ("auth", "interceptor", "secrets", "sources")),
    "storage": ("storage", ("kv", "blob", "storage", "warehouse", "gc")),
    "jobs": ("jobs", ("reconciler", "profiles", "maintenance", "quality", "pipelines", "webhooks", "events")),
    "telemetry": ("logs, metrics and traces", ("log", "audit", "telemetry", "metrics")),
}
"""The pages of settings: the title of each, and its sections."""


def page(title: str, about: str, content: str) -> str:
    """A page that is generated as a whole. Its words do not count (`check_size.py`)."""
    return (
        f"# {title}\n\n{about}\n\n<!-- page: generated, do not edit -->\n\n{content.strip()}\n\n<!-- end of page -->\n"
    )


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def settings_page(topic: str) -> str:
    """The settings of a topic, by section."""
    title, sections = TOPICS[topic]
    by_section = {name: list(each) for name, each in groupby(describe(), key=lambda each: each.key.partition(".")[0])}
    parts = [
        f"## {name}\n\n{table(('key', 'value', 'default', 'description'), map(_setting_row, by_section[name]))}"
        for name in sections
    ]
    return page(f"Settings of {title}", "[Configuration](../configuration.md) says how to set them.", "\n".join(parts))


def _setting_row(setting: Setting) -> Sequence[str]:
    return f"`{setting.key}`", setting.takes, f"`{setting.default}`" if setting.default else "", setting.description


def metrics_page() -> str:
    """All metrics."""
    head = ("metric", "name in Prometheus", "kind", "tags", "description")
    return page(
        "Metrics",
        "[Operations](../operations.md#metrics) says how to read them.",
        table(head, map(_metric_row, METRICS)),
    )


def _metric_row(metric: Metric) -> Sequence[str]:
    exported = prometheus_name(metric) + ("_total" if metric.kind == "counter" else "")
    return f"`{metric.name}`", f"`{exported}`", metric.kind, ", ".join(metric.tags), metric.description


def errors_page() -> str:
    """The codes of all errors."""
    rows = (
        (
            f"`{code}`",
            ", ".join(f"`{each}`" for each in statuses(code)[0]),
            ", ".join(f"`{each}`" for each in statuses(code)[1]),
            *each,
        )
        for code, each in EXPLANATIONS.items()
    )
    about = (
        "`skiway explain CODE` prints the same. [What can go wrong](../what-can-go-wrong.md) lists errors by situation."
    )
    return page("Errors", about, table(("code", "gRPC", "classes", "meaning", "what to do"), rows))


def rpc_page() -> str:
    """All methods of the gRPC services."""
    parts = []
    for each in all_services():
        rows = (
            (f"`{method.name}`", " or ".join(f"`{permission}`" for permission in method.rule.permissions))
            for method in each.methods()
        )
        parts.append(f"## {each.name}\n\n{table(('method', 'permission'), rows)}")
    about = "A caller needs one of the permissions of a method. [gRPC](../rpc.md) explains headers, errors and streams."
    return page("gRPC methods", about, "\n".join(parts))


def commands_page() -> str:
    """All commands with their arguments and options."""
    root: Any = typer.main.get_command(app)
    parts = []
    for title, commands in (("Lake commands", LAKE), ("Server commands", SERVER)):
        parts.append(f"## {title}\n")
        for name in commands:
            found = root.get_command(None, name)
            children = getattr(found, "commands", None)
            for verb, command in children.items() if children else [("", found)]:
                parts.append(_command(f"{name} {verb}".strip(), command))
    about = "Every command has `--help`, which prints the same. [The command line](../cli.md) is the guide."
    return page("Commands", about, "\n".join(parts))


def _command(name: str, command: Any) -> str:
    arguments = [each.metavar or each.name.upper() for each in command.params if each.param_type_name == "argument"]
    about = " ".join((command.help or "").split("\n\n")[0].split())
    options = [
        (
            ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts)),
            " ".join((option.help or "").split()),
        )
        for option in command.params
        if option.param_type_name == "option"
        and not option.hidden
        and option.name not in ("server", "token", "account", "output")
    ]
    shown = f"\n{table(('option', 'meaning'), iter(options))}" if options else ""
    return f"### {' '.join([name, *arguments])}\n\n{_escaped(about)}\n{_escaped(shown)}"


def _escaped(text: str) -> str:
    return re.sub(r"<(?=\w)", "&lt;", text)


def threats_page() -> str:
    """All threats with their protections and the files of the tests that attack the server."""
    parts = []
    for section in tomllib.loads(THREATS.read_text())["section"]:
        rows = ((each["threat"], each["protection"], str(len(each["tests"]))) for each in section["threat"])
        parts.append(f"## {section['title']}\n\n{table(('threat', 'protection', 'tests'), rows)}")
    about = "`tests/security/threats.toml` names the tests. [The threat model](../threat-model.md) says who is trusted."
    return page("Threats", about, "\n".join(parts))


def system_tables() -> str:
    """The tables of the schema `skiway`, with their columns."""
    parts = []
    for each in SystemSchema(NO_LAKE, v1.Catalog(), NO_LAKE).tables():
        columns = ", ".join(f"`{field.name}` {duckdb_type(field)}" for field in each.schema)
        parts.append((f"`{each.name}`", each.comment, columns))
    return table(("table", "contents", "columns"), iter(parts))


def system_functions() -> str:
    """The functions of the schema `skiway`."""
    functions = SystemSchema(NO_LAKE, v1.Catalog(), NO_LAKE).table_functions()
    rows = sorted((f"`{each.name}`", re.sub(rf"{each.name}\(.*\)", r"`\g<0>`", each.comment)) for each in functions)
    return table(("function", "what it does"), iter(rows))


def endpoints() -> str:
    """The routes of Iceberg REST."""
    routes = ((f"`{route.endpoint}`", f"`{route.permissions[0]}`") for route in ROUTES if route.permissions)
    return table(("endpoint", "permission"), routes)


def parts() -> Mapping[Path, str]:
    """The pages with generated parts, as they should be."""
    schema, rest = DOCS / "reference" / "system-schema.md", DOCS / "reference" / "rest.md"
    return MappingProxyType(
        {
            schema: with_part(
                with_part(schema.read_text(), "tables", system_tables()), "functions", system_functions()
            ),
            rest: with_part(rest.read_text(), "endpoints", endpoints()),
        }
    )


def with_part(text: str, name: str, content: str) -> str:
    """The text with this content between the markers of this name."""
    begin, end = f"<!-- {name}: generated, do not edit -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{rest.partition(end)[2]}"


def pages() -> Mapping[Path, str]:
    """The pages as they should be."""
    reference = DOCS / "reference"
    return MappingProxyType(
        {
            **{reference / f"settings-{topic}.md": settings_page(topic) for topic in TOPICS},
            reference / "metrics.md": metrics_page(),
            reference / "errors.md": errors_page(),
            reference / "rpc.md": rpc_page(),
            reference / "commands.md": commands_page(),
            reference / "threats.md": threats_page(),
        }
    )


if __name__ == "__main__":
    for path, text in {**pages(), **parts()}.items():
        path.write_text(text)
