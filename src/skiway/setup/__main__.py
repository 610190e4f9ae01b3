"""Writes the JSON schema of setup files: `python -m skiway.setup docs/setup.schema.json`."""

import sys
from pathlib import Path

from skiway.setup import schema_text

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
