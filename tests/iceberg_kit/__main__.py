"""The command of `make iceberg-kit`: runs Apache Iceberg's own catalog suites against a server that it starts.

It prints how many tests of each suite passed, failed or are excluded. It fails if less than 95% of a suite passed, if a
test fails that `exclusions.toml` does not list, or if a listed test passes.

With `--default-server` the server has no settings, and the suites use its catalog `lake`. Then the command only prints the results:
tests fail that choose locations, name data files elsewhere, or expect the properties of a catalog.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from iceberg_kit.results import SUITES, Results, excluded, failures, read_results, report
from runtime.servers import started
from skiway.client.metastore import Metastore

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / ".cache" / "iceberg-kit"
TESTED_DATA = "/path/to"
"""Where the data files are that the suites append: they never exist, and no test reads them."""

PROPERTIES = {
    "table-default.default-key1": "catalog-default-key1",
    "table-default.default-key2": "catalog-default-key2",
    "table-default.override-key3": "catalog-default-key3",
    "table-override.override-key3": "catalog-override-key3",
    "table-override.override-key4": "catalog-override-key4",
    "view-default.key1": "catalog-default-key1",
    "view-default.key2": "catalog-default-key2",
    "view-default.key3": "catalog-default-key3",
    "view-override.key3": "catalog-override-key3",
    "view-override.key4": "catalog-override-key4",
}
"""What the suites expect from the catalog for new tables and views."""


def main() -> int:
    given = _arguments()
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        print(f"make iceberg-kit needs Java 17 and Maven; not found: {', '.join(missing)}. Install them and try again.")
        return 1
    with tempfile.TemporaryDirectory(prefix="skiway-kit-") as folder:
        results = run(Path(folder).resolve(), given.tests, default=given.default_server)
    print(report(results, excluded()))
    if given.default_server:
        return 0
    problems = failures(results, excluded(), complete=not given.tests)
    print("\n".join(problems))
    return 1 if problems else 0


def run(folder: Path, tests: str = "", *, default: bool = False) -> dict[str, Results]:
    """Start a server and run the suites, or only the tests that `tests` selects in Surefire's syntax.

    If `default`, the server has its default settings. Otherwise it has the locations and the properties that the suites expect.
    """
    places = folder / "places"
    places.mkdir()
    approved = "; ".join(f"default/kit={place}" for place in (places, TESTED_DATA))
    settings = () if default else ("--set", f"warehouse.locations={approved}")
    with started(folder / "home", *settings, fresh=True) as server:
        uri = server.addresses["http"]
        if not default:
            _create_catalog(server.addresses["rpc"])
        shutil.rmtree(TARGET / "surefire-reports", ignore_errors=True)
        command = ["mvn", "--batch-mode", "--quiet", "test", f"-Dkit.uri={uri}/iceberg", f"-Dkit.folder={places}"]
        command.append(f"-Dkit.warehouse={'lake' if default else 'kit'}")
        done = subprocess.run([*command, *([f"-Dtest={tests}"] if tests else [])], cwd=HERE, check=False)
        if done.returncode:
            raise SystemExit(f"Maven failed with {done.returncode}: see its output above")
    return {name: read_results(TARGET / "surefire-reports", name) for name in SUITES}


def _create_catalog(address: str) -> None:
    with Metastore(address) as lake:
        lake.catalogs.create("kit", properties=PROPERTIES)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make iceberg-kit", description=__doc__)
    parser.add_argument("--tests", default="", help="run only these, such as 'ViewsTest#rename*'")
    parser.add_argument(
        "--default-server", action="store_true", help="run against a server without settings, and report"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
