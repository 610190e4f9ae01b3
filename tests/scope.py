"""How much runs: the tests of `make test`, or every case of them."""

from __future__ import annotations

import os

ALL = os.environ.get("SKIWAY_TESTS") == "all"
"""Every case: `make test-all`."""

FAULTS = os.environ.get("SKIWAY_FAULTS") == "all"
"""A fault at every step: `make faults`."""
