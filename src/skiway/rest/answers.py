"""What goes back to a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["NOTHING", "Answer", "said"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body in JSON or none, and headers beside those that every answer has."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


NOTHING: Final = Answer(204)
"""Done, and there is nothing to say."""


def said(value: Any, status: int = 200) -> Answer:
    """An answer that says `value`."""
    return Answer(status, json.dumps(value).encode())
