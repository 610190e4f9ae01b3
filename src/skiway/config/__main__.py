"""`python -m skiway.config docs/configuration.md` writes the reference of all settings into the page."""

import sys
from pathlib import Path

from skiway.config.reference import page_with_reference

page = Path(sys.argv[1])
page.write_text(page_with_reference(page.read_text()))
