"""The command of `make compatibility`: runs the tests of each part of `parts.toml` with each version, and writes the page about it.

It fails if a test fails that `known_failures.toml` does not list, or if a listed test passes. Such results are not recorded.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from compatibility.page import PAGE, read_results, record, rendered
from compatibility.parts import CACHE, known_failures, parts, problems


def main() -> int:
    every = parts()
    parser = argparse.ArgumentParser(prog="make compatibility", description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=[*every], help="test only this part")
    parser.add_argument("--version", help="test only this version")
    given = parser.parse_args()
    chosen = [
        (part, version)
        for part in every.values()
        if given.part in (None, part.name)
        for version in part.versions
        if given.version in (None, version)
    ]
    if not chosen:
        listed = "; ".join(f"{part.name}: {', '.join(part.versions)}" for part in every.values())
        parser.error(f"no part has version {given.version}; the versions are {listed}")
    CACHE.mkdir(parents=True, exist_ok=True)
    failed = []
    for part, version in chosen:
        key = f"{part.name} {version}"
        print(f"== {key}", flush=True)
        found, known = part.run(version), known_failures(part.name, version)
        if found_problems := problems(found, known):
            failed += [f"{key}: {each}" for each in found_problems]
            continue
        passed = sum(not reason for reason in found.values())
        listed_known = {test: known[test] for test, reason in found.items() if reason}
        date = datetime.now(UTC).date().isoformat()
        record(key, {"date": date, "tests": len(found), "passed": passed, "known": listed_known})
    PAGE.write_text(rendered(every, read_results()))
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
