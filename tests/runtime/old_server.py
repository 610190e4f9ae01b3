"""Runs `skiway` as a version that knows formats up to 1 only."""

from __future__ import annotations

import sys
from unittest.mock import patch

from skiway.cli.app import main

KNOWS = ("skiway.storage.pointers.sql", "skiway.metastore.migrations")

if __name__ == "__main__":
    for module in KNOWS:
        patch(f"{module}.FORMAT_VERSION", 1).start()
    patch("skiway.runtime.stores.STEPS", ()).start()
    sys.exit(main())
