"""Find out since which release DuckDB has each function, type and collation, and write `duckdb_since.json`.

    duckdb_since.py FOLDER

FOLDER contains a folder for each release, made with `uv pip install --no-deps --target FOLDER/1.1.0 duckdb==1.1.0`.
Names of the oldest release are left out: they need no rule. `generate_builtins.py` reads the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).with_suffix(".json")
LISTED_LATE = {"ARRAY"}
"""Types that exist longer than DuckDB lists them."""
QUERY = """
import duckdb, json
db = duckdb.connect(config={"autoload_known_extensions": "false"})
def names(sql):
    return sorted({str(row[0]) for row in db.execute(sql).fetchall()})
print(json.dumps({
    "functions": names("SELECT function_name FROM duckdb_functions() WHERE internal"),
    "types": names("SELECT logical_type FROM duckdb_types()"),
    "collations": names("PRAGMA collations"),
}))
"""


def names_of(release: Path) -> dict[str, list[str]]:
    """The names that a release has, by class."""
    command = [sys.executable, "-c", QUERY]
    done = subprocess.run(command, env={"PYTHONPATH": str(release)}, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def main() -> None:
    releases = sorted(Path(sys.argv[1]).iterdir(), key=lambda path: tuple(map(int, path.name.split("."))))
    since: dict[str, dict[str, str]] = {"functions": {}, "types": {}, "collations": {}}
    known: dict[str, set[str]] = {key: set() for key in since}
    for number, release in enumerate(releases):
        for key, names in names_of(release).items():
            new = set(names) - known[key] - LISTED_LATE
            known[key] |= new
            since[key] |= dict.fromkeys(new, release.name) if number else {}
    TARGET.write_text(
        json.dumps({key: dict(sorted(names.items())) for key, names in since.items()}, indent=1, ensure_ascii=False)
        + "\n"
    )


if __name__ == "__main__":
    main()
