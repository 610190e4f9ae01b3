"""The steps of all migrations. To change the format, increase `skiway.storage.format.FORMAT_VERSION` and add a step here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skiway.metastore.migrations.migration import Step
from skiway.metastore.platform import move_signing_key

__all__ = ["STEPS"]

STEPS: Final[Sequence[Step]] = (
    Step(
        2, "move the key that signs tickets from the pointer store to the secrets store", move_signing_key, online=True
    ),
)
"""Format 1 is that of all versions before migrations existed."""
