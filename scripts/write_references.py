"""Write what is generated into the documentation: all settings into docs/configuration.md, all metrics into docs/operations.md."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from skiway.config import Setting, describe
from skiway.telemetry.definitions import METRICS, Metric, prometheus_name

DOCS = Path(__file__).parents[1] / "docs"


def page_with(name: str, content: str, page: str) -> str:
    """The page with new content between the two markers of this name."""
    begin, end = f"<!-- {name}: generated, do not edit -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n{end}{after}"


def settings_reference() -> str:
    """A table of settings for each section."""
    sections = groupby(describe(), key=lambda setting: setting.key.partition(".")[0])
    return "\n".join(_settings_table(name, list(settings)) for name, settings in sections)


def _settings_table(section: str, settings: list[Setting]) -> str:
    rows = [
        f"| `{setting.key}` | {setting.takes} | {f'`{setting.default}`' if setting.default else ''} | {setting.description} |"
        for setting in settings
    ]
    return "\n".join([f"### {section}", "", "| key | value | default | description |", "|---|---|---|---|", *rows, ""])


def metrics_reference() -> str:
    """The table of metrics."""
    head = ["| metric | name in Prometheus | kind | tags | description |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_metric_row, METRICS), ""])


def _metric_row(metric: Metric) -> str:
    exported = prometheus_name(metric) + ("_total" if metric.kind == "counter" else "")
    return f"| `{metric.name}` | `{exported}` | {metric.kind} | {', '.join(metric.tags)} | {metric.description} |"


def pages() -> Mapping[Path, str]:
    """The pages as they should be."""
    configuration, operations = DOCS / "configuration.md", DOCS / "operations.md"
    return MappingProxyType(
        {
            configuration: page_with("settings", settings_reference(), configuration.read_text()),
            operations: page_with("metrics", metrics_reference(), operations.read_text()),
        }
    )


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
