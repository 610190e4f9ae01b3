"""The command of `make duckdb-iceberg-kit`: runs the catalog suite of DuckDB's iceberg extension against a server that it starts.

It takes the suite from a git repository of duckdb/duckdb-iceberg, whose files are never kept. It creates the tables of the suite with
Spark, in a bucket of moto, and prints how many files passed, next to the skip lists of other catalogs. It fails if a file fails that
`known_failures.toml` does not list, or if a listed file passes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Timer
from typing import Final

import duckdb

from duckdb_iceberg_kit.running import Outcome, Settings
from duckdb_iceberg_kit.suite import COMMIT, NEED_LARGE, check_out, groups, known_failures, problems, report
from runtime.servers import environment, started
from storage.homes import running_aws

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parents[1] / ".cache" / "duckdb-iceberg-kit"
FETCHED: Final = ("aws", "ducklake", "tpch")
"""Extensions that the project does not install."""

LOADED: Final = ("core_functions", "parquet", "httpfs", "avro", "iceberg", "icu")
NEEDED_BY_SUITE: Final = "http://127.0.0.1:8181/v1/"
"""The address of a catalog in the files of the suite."""


def main() -> int:
    given = _arguments()
    extensions = _extensions()
    with tempfile.TemporaryDirectory(prefix="skiway-kit-") as folder:
        root = Path(folder).resolve() / "suite"
        check_out(given.repository, given.commit, root)
        with running_aws() as s3, started(Path(folder) / "home", *_settings(s3), fresh=True) as server:
            _create_tables(given, root, server.addresses["http"], s3, extensions)
            chosen = [[file for file in group if given.tests in file] for group in groups(root)]
            if not given.large:
                chosen = [[file for file in group if file not in NEED_LARGE] for group in chosen]
            outcomes = run(
                root, [group for group in chosen if group], _database(server.addresses["http"], s3), extensions, given
            )
        known = known_failures()
        print(report(root, outcomes, known))
        found = problems(outcomes, known)
    print("\n".join(found))
    return 1 if found else 0


def run(
    root: Path, files: Sequence[list[str]], settings: Settings, extensions: Path, given: argparse.Namespace
) -> list[Outcome]:
    """Run groups of files in several processes."""
    waiting: SimpleQueue[list[str]] = SimpleQueue()
    for group in files:
        waiting.put(group)

    def run_waiting(_: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with closing(_Worker(root, settings, extensions, given.timeout)) as worker:
            while True:
                try:
                    group = waiting.get_nowait()
                except Empty:
                    return outcomes
                for file in group:
                    outcomes.append(worker.run(file))
                    print(f"{outcomes[-1].result:8}{file} {outcomes[-1].reason[:200]}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(given.workers) as threads:
        return [outcome for part in threads.map(run_waiting, range(given.workers)) for outcome in part]


@dataclass
class _Worker:
    """A process that runs files. A file that ends it, or takes too long, has failed, and the next one gets a new process."""

    root: Path
    settings: Settings
    extensions: Path
    timeout_s: float
    process: subprocess.Popen[str] | None = None

    def run(self, file: str) -> Outcome:
        process = self.process = self.process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(self.timeout_s, process.kill)
        timer.start()
        process.stdin.write(f"{file}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        timer.cancel()
        if answer:
            return Outcome(**json.loads(answer))
        self.process = None
        return Outcome(
            file, "failed", f"the process ended with {process.wait()}, or was ended after {self.timeout_s:g} s"
        )

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "duckdb_iceberg_kit.worker", json.dumps(asdict(self.settings))]
        variables = environment(PYTHONPATH=f"{self.extensions}:{HERE.parent}", AWS_EC2_METADATA_DISABLED="true")
        return subprocess.Popen(
            command, cwd=self.root, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


def _settings(s3: str) -> list[str]:
    settings = {
        "warehouse.uri": "s3://skiway-test/tables",
        "warehouse.vending.credentials": "static",
        "warehouse.vending.static.accounts": "default",
        "warehouse.vending.static.read_access_key_id": "key",
        "warehouse.vending.static.read_secret_access_key": "secret",
        "warehouse.vending.static.write_access_key_id": "key",
        "warehouse.vending.static.write_secret_access_key": "secret",
        "storage.aws.region": "us-east-1",
        "storage.aws.access_key_id": "key",
        "storage.aws.secret_access_key": "secret",
        "storage.aws.s3.endpoint": s3,
    }
    return [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]


def _database(http: str, s3: str) -> Settings:
    secret = (
        f"TYPE s3, KEY_ID 'key', SECRET 'secret', ENDPOINT '{s3.removeprefix('http://')}', URL_STYLE 'path', USE_SSL 0"
    )
    catalog = f"TYPE iceberg, ENDPOINT '{http}/iceberg', AUTHORIZATION_TYPE 'none'"
    return Settings(
        extensions=LOADED,
        first_sql=f"CREATE SECRET storage ({secret}); ATTACH 'lake' AS my_datalake ({catalog}); "
        "CREATE SCHEMA IF NOT EXISTS my_datalake.default",
        environment={"CATALOG_TEST_CONFIG_SETUP": "skiway", "DUCKDB_ICEBERG_HAVE_GENERATED_DATA": "1"},
        replaced={NEEDED_BY_SUITE: f"{http}/iceberg/v1/lake/"},
    )


def _create_tables(given: argparse.Namespace, root: Path, http: str, s3: str, extensions: Path) -> None:
    tpch = extensions / "duckdb_extension_tpch" / "extensions" / f"v{duckdb.__version__}" / "tpch.duckdb_extension"
    options = ["--catalog", f"{http}/iceberg", "--warehouse", "lake", "--s3", s3, "--tpch", str(tpch)]
    for part in (["--large"] if given.large else [], ["--single-thread"]):
        command = [sys.executable, "-m", "duckdb_iceberg_kit.tables", str(root), *options, *part]
        subprocess.run(command, env=environment(PYTHONPATH=str(HERE.parent)), check=True)


def _extensions() -> Path:
    """The folder with the extensions that only the suite needs; they are installed there if they are missing."""
    folder = CACHE / duckdb.__version__
    missing = [name for name in FETCHED if not (folder / f"duckdb_extension_{name}").is_dir()]
    if missing:
        packages = [f"duckdb-extension-{name}=={duckdb.__version__}" for name in missing]
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            *packages,
        ]
        subprocess.run(command, check=True)
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run the catalog suite of DuckDB's iceberg extension against a server."
    )
    parser.add_argument("repository", type=Path, help="a git repository of duckdb/duckdb-iceberg")
    parser.add_argument("--commit", default=COMMIT, help="a commit of it; by default that of the installed extension")
    parser.add_argument("--tests", default="", help="run only the files whose path contains this text")
    parser.add_argument(
        "--large",
        action="store_true",
        help="also run the two files that need tables at scale factor 1, which takes half an hour",
    )
    parser.add_argument("--workers", type=int, default=2, help="the number of processes (2)")
    parser.add_argument("--timeout", type=float, default=300, help="the seconds that a file may take (300)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
