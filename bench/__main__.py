"""`python -m bench [part …]`: all parts, or the named ones."""

from __future__ import annotations

import sys

from bench import airport_reading, airport_writing, metastore, planning, profile, rest
from bench.report import report

PARTS = {
    "airport_reading": airport_reading.figures,
    "airport_writing": airport_writing.figures,
    "metastore": metastore.figures,
    "rest": rest.figures,
    "planning": planning.figures,
    "profile": profile.figures,
}


def main() -> None:
    unknown = set(sys.argv[1:]) - PARTS.keys()
    if unknown:
        sys.exit(f"unknown part {min(unknown)!r}; there are: {', '.join(PARTS)}")
    for name in sys.argv[1:] or PARTS:
        report(name, PARTS[name]())


if __name__ == "__main__":
    main()
