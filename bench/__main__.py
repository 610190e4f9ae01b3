"""`python -m bench [part …]`: run all parts, or the named ones. A part that fails does not stop the others."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final

from bench.report import Measured, report, summary

Part = Callable[[], Iterable[Measured]]

PARTS: Final = (
    "startup",
    "airport_reading",
    "airport_writing",
    "lake",
    "live",
    "calls",
    "tpch",
    "attaching",
    "scale",
    "any_duckdb",
    "query",
    "rest",
    "processes",
    "metastore",
    "planning",
    "syncing",
    "explorer",
    "maintenance",
    "profile",
    "spark_source",
)


def figures_of(name: str) -> Part:
    """The function that measures a part. Its module is imported only now, because some parts need more libraries than others."""
    found: Part = import_module(f"bench.{name}").figures
    return found


def run(parts: Mapping[str, Part]) -> int:
    """Measure all parts and print how they compare with their targets. Return 1 if any part failed, else 0."""
    found: dict[str, Sequence[Measured]] = {}
    failed: dict[str, str] = {}
    for name, part in parts.items():
        try:
            found[name] = report(name, part())
        except Exception as error:  # noqa: BLE001 - any failure; the other parts still run
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    summary(found, failed)
    return 1 if failed else 0


def main() -> None:
    unknown = set(sys.argv[1:]) - set(PARTS)
    if unknown:
        sys.exit(f"unknown part {min(unknown)!r}; choose from {', '.join(PARTS)}")
    names = sys.argv[1:] or PARTS
    code = run({name: lambda name=name: figures_of(name)() for name in names})  # type: ignore[misc]
    from bench.page import renew

    renew()
    sys.exit(code)


if __name__ == "__main__":
    main()
