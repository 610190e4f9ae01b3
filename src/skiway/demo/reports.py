"""The pipeline of the demo: tables that Spark derives from the tickets, declared in files that people can edit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from skiway.client import Metastore
from skiway.errors import AlreadyExists, SkiwayError

__all__ = ["FILES", "NAME", "TABLES", "derive", "write_files"]

NAME: Final = "reports"

FILES: Final = {
    "pipeline.yml": """\
name: reports
catalog: lake
namespace: reports
description: How well the resorts sell
""",
    "daily_sales.sql": """\
-- @description: Tickets and money by resort and day
SELECT resort, sold_on AS day, count(*) AS tickets, sum(amount) AS sold
FROM sales.tickets
WHERE NOT refunded
GROUP BY resort, sold_on
""",
    "best_days.sql": """\
-- @description: The three best days of each resort
SELECT resort, day, sold
FROM (SELECT *, row_number() OVER (PARTITION BY resort ORDER BY sold DESC, day) AS place FROM daily_sales)
WHERE place <= 3
""",
}
TABLES: Final = ("best_days", "daily_sales")


def write_files(folder: Path) -> None:
    """Write the files of the pipeline, unless there are some already."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        if not (folder / name).exists():
            (folder / name).write_text(text)


def derive(lake: Metastore, *, timeout_s: float) -> str:
    """Create the pipeline unless it exists, run it, and say what came out. A failure is not one of the demo: the rest works."""
    with suppress(AlreadyExists):
        lake.pipelines.create(FILES)
    try:
        job = lake.jobs.wait(lake.pipelines.start(NAME), timeout_s=timeout_s, every_s=0.2)
    except SkiwayError as error:
        return f"not derived: {error.message}"
    if job.state != "succeeded":
        return f"not derived: {job.message.message}"
    return f"{len(TABLES)} tables"
