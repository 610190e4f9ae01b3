"""`python -m skiway.config docs/configuration.md` writes the reference of all settings into the page."""

import sys
from pathlib import Path

from skiway.config.settings import page_with_reference

__all__: list[str] = []

page = Path(sys.argv[1])
page.write_text(page_with_reference(page.read_text()))
