"""What a call did and where its time went, for the history of queries: filled in where it is known, and read when the call has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_OPERATORS: Final = 60
MAX_FACT: Final = 200

_FACTS: Final = {
    "Function": "reads with",
    "Join Type": "join",
    "Conditions": "on",
    "Expression": "where",
    "Filters": "where",
    "Dynamic Filters": "where",
    "Groups": "by",
    "Aggregates": "computes",
    "Order By": "by",
    "Top": "rows",
    "Estimated Cardinality": "expected rows",
}
"""What DuckDB tells about an operator, and the words for it. The rest, such as names of files, is left out."""


@dataclass(slots=True)
class Measures:
    """One call. `text` is set by whoever runs a query of a caller: without it, a query belongs to the server, such as one of policies.

    `reads` are the tables that the call planned to read. `profile` is what DuckDB measured, as a JSON text.
    """

    text: str = ""
    queue_s: float = 0.0
    plan_s: float = 0.0
    run_s: float = 0.0
    profile: str = ""
    reads: list[Any] = field(default_factory=list)

    def timed(self, items: Iterator[T]) -> Iterator[T]:
        """The items. The time until each of them is there counts as that of the query; the time in between is that of its reader."""
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.run_s += time.perf_counter() - began
            yield item


_current: ContextVar[Measures | None] = ContextVar("skiway_measures", default=None)


def begin_measures() -> Measures:
    """Measure the call that begins in this context, and what runs in copies of it."""
    measures = Measures()
    _current.set(measures)
    return measures


def current_measures() -> Measures:
    """Those of the current call; outside of a call, some that nobody reads."""
    return _current.get() or Measures()


def operators(profile: str) -> list[dict[str, Any]]:
    """The operators of a profile, from the result to the tables, with their depth, time, rows and facts; none if it cannot be read.

    A process that runs SQL of callers wrote it, so nothing in it is trusted.
    """
    try:
        root = json.loads(profile) if profile else {}
        return [each for top in root.get("children", ()) for each in _operators(top, 0)][:MAX_OPERATORS]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def _operators(node: Mapping[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    facts = {word: _fact(value) for key, word in _FACTS.items() if (value := node.get("extra_info", {}).get(key))}
    yield {
        "depth": depth,
        "name": str(node.get("operator_name") or node.get("operator_type"))[:MAX_FACT]
        .replace("_", " ")
        .lower()
        .strip(),
        "ms": round(float(node.get("operator_timing") or 0) * 1000, 3),
        "rows": int(node.get("operator_cardinality") or 0),
        "facts": facts,
    }
    if depth < MAX_OPERATORS:
        for child in node.get("children", ()):
            yield from _operators(child, depth + 1)


def _fact(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_FACT else f"{text[: MAX_FACT - 1]}…"
