"""The cases of the differential suite: sequences of statements that must do the same everywhere.

A case has a schema of its own, written `{s}` in its statements, and `{schema}` without the catalog; `{attach}` is the statement
that attaches the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["ATTACH_AGAIN", "LOSSLESS", "Case", "Step", "case"]

LOSSLESS = "SET arrow_lossless_conversion = true"
"""The setting with which DuckDB sends types such as UUID and HUGEINT as what they are."""

Compared = Literal["all", "success"]


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, and what plain DuckDB runs instead if it has no such statement.

    `save` keeps the first value of the result as a variable that later statements can use, such as `{moment}`.
    """

    sql: str
    plain: str | None = None
    compare: Compared = "all"
    save: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """Statements that depend on each other, run in one session against plain DuckDB and against every target."""

    name: str
    steps: tuple[Step, ...]
    targets: tuple[str, ...] = ("memory", "file", "lake")
    settings: tuple[str, ...] = ()


ATTACH_AGAIN = (
    Step("DETACH db", plain="SELECT 1", compare="success"),
    Step("{attach}", plain="SELECT 1", compare="success"),
)
"""Only now does a client see the columns as others do."""


def case(
    name: str,
    *steps: str | Step,
    targets: Iterable[str] = ("memory", "file", "lake"),
    settings: Iterable[str] = (),
) -> Case:
    """A case of statements, most of which are just text."""
    made = tuple(step if isinstance(step, Step) else Step(step) for step in steps)
    return Case(name, made, tuple(targets), tuple(settings))
