"""The table of all metrics as Markdown, which `docs/operations.md` holds between two markers."""

from __future__ import annotations

from skiway.telemetry.definitions import METRICS, Metric
from skiway.telemetry.prometheus import prometheus_name

__all__ = ["page_with_metrics"]

BEGIN, END = "<!-- metrics: made, do not edit -->", "<!-- end of metrics -->"


def page_with_metrics(page: str) -> str:
    """The page with the table as it is now between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    head = ["| metric | as Prometheus sees it | kind | tags | what it tells |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *map(_row, METRICS)])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _row(metric: Metric) -> str:
    exported = prometheus_name(metric) + ("_total" if metric.kind == "counter" else "")
    return f"| `{metric.name}` | `{exported}` | {metric.kind} | {', '.join(metric.tags)} | {metric.description} |"
