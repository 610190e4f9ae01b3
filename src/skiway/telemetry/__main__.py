"""`python -m skiway.telemetry docs/operations.md` writes the table of all metrics into the page."""

import sys
from pathlib import Path

from skiway.telemetry.definitions import page_with_metrics

__all__: list[str] = []

page = Path(sys.argv[1])
page.write_text(page_with_metrics(page.read_text()))
