"""The command of `make pyiceberg-kit`: runs PyIceberg's own integration tests against a server that it starts.

The tests are in PyIceberg's source distribution. They need a REST catalog, S3 and a Spark Connect server; here these are Skiway, moto
and Spark with Iceberg's jars. Tests of other catalogs are left out. The command prints how many tests passed, and fails if a test
fails that `known_failures.toml` does not list, or if a listed test passes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from compatibility.parts import outcomes, problems
from ports import free_port
from runtime.servers import environment, eventually, started
from skiway.client import Metastore
from skiway.spark_jobs.java import ICEBERG, ensure_java
from storage.homes import running_aws

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parents[1] / ".cache" / "pyiceberg-kit"
AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
BUCKET: Final = "warehouse"
PACKAGES: Final = ("polars", "polars-runtime-32", "pytest-lazy-fixtures", "pytest-mock")
"""What the tests import in addition to the project's own packages."""

PROPERTIES: Final = {"table-default.write.parquet.compression-codec": "zstd"}
"""What the tests expect of new tables: the default of Java's catalogs."""

LEFT_OUT: Final = "not hive and not memory_catalog and not sqlite"
"""Tests of other catalogs."""


def main() -> int:
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="skiway-kit-") as name:
        folder = Path(name).resolve()
        with running_aws(BUCKET) as s3, started(folder / "home", *_settings(s3), fresh=True) as server:
            catalog = f"{server.addresses['http']}/iceberg"
            with Metastore(server.addresses["rpc"]) as metastore:
                metastore.catalogs.update("lake", properties=PROPERTIES)
            with running_spark(folder, catalog, s3) as spark:
                suite = copied(folder / "suite", {"catalog": catalog, "s3": s3, "spark": spark})
                _run([sys.executable, "dev/provision.py"], suite)
                chosen = f"{LEFT_OUT} and ({given.tests})" if given.tests else LEFT_OUT
                options = ["-q", "--junitxml", str(folder / "results.xml"), "-k", chosen]
                _run([sys.executable, "-m", "pytest", "tests/integration", *options], suite, check=False)
        found = outcomes(folder / "results.xml")
    known: dict[str, str] = tomllib.loads((HERE / "known_failures.toml").read_text())["failures"]
    print(report(found, known))
    failed = problems(found, known)
    print("\n".join(failed))
    return 1 if failed else 0


def report(found: dict[str, str], known: dict[str, str]) -> str:
    """The figures, and the known failures with their reasons."""
    failed = [test for test, reason in found.items() if reason]
    lines = [f"PyIceberg {version('pyiceberg')}: {len(found) - len(failed)} of {len(found)} tests passed"]
    return "\n".join([*lines, *(f"  failed as known: {test}: {known[test]}" for test in failed if test in known)])


def copied(suite: Path, addresses: dict[str, str]) -> Path:
    """Copy the tests, and replace the addresses of the services that they expect."""
    replaced = {
        "http://localhost:8181": addresses["catalog"],
        "http://localhost:9000": addresses["s3"],
        "s3_endpoint='localhost:9000'": f"s3_endpoint='{addresses['s3'].removeprefix('http://')}'",
        "sc://localhost:15002": addresses["spark"],
        "in catalogs.items():": 'in [("rest", catalogs["rest"])]:',
    }
    for file in [*(source() / "tests").rglob("*"), source() / "dev" / "provision.py"]:
        target = suite / file.relative_to(source())
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".py":
            text = file.read_text()
            for old, new in replaced.items():
                text = text.replace(old, new)
            target.write_text(text)
        elif file.is_file():
            shutil.copy(file, target)
    (suite / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    integration\n    s3\n    adls\n    gcs\n    unmarked\n    benchmark\n    notebook\n"
    )
    return suite


def source() -> Path:
    """The source distribution of the installed PyIceberg, which is fetched once, with the packages that its tests import."""
    name = f"pyiceberg-{version('pyiceberg')}"
    uv = [sys.executable, "-m", "uv"]
    if not (CACHE / name).is_dir():
        fetch = [
            "tool",
            "run",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "pyiceberg",
            "--dest",
            str(CACHE),
        ]
        subprocess.run([*uv, *fetch, name.replace("-", "==")], check=True)
        with tarfile.open(CACHE / f"{name}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    if not (CACHE / "packages").is_dir():
        install = ["pip", "install", "--quiet", "--no-deps", "--target", str(CACHE / "packages"), *PACKAGES]
        subprocess.run([*uv, *install], check=True)
    return CACHE / name


@contextmanager
def running_spark(folder: Path, catalog: str, s3: str) -> Iterator[str]:
    """Run a Spark Connect server whose catalog `rest` is the server; yields its address."""
    port, log = free_port(), folder / "spark.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.jars.packages": f"{ICEBERG},{AWS}",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.defaultCatalog": "rest",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.rest": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.rest.type": "rest",
        "spark.sql.catalog.rest.uri": catalog,
        "spark.sql.catalog.rest.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "spark.sql.catalog.rest.s3.endpoint": s3,
        "spark.sql.catalog.rest.s3.path-style-access": "true",
        "spark.sql.catalog.rest.cache-enabled": "false",
    }
    ensure_java()
    home = Path(str(find_spec("pyspark").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "2g"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    variables = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "admin", "AWS_SECRET_ACCESS_KEY": "password"}
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}, cwd=folder, start_new_session=True
        ) as process,
    ):
        try:
            eventually(lambda: process.poll() is not None or "Connect server started" in log.read_text(), within_s=300)
            if process.poll() is not None:
                raise SystemExit(f"the Spark Connect server ended: {log.read_text()[-2000:]}")
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()


def _settings(s3: str) -> list[str]:
    settings = {
        "warehouse.uri": f"s3://{BUCKET}/tables",
        "warehouse.locations": f"default/lake=s3://{BUCKET}/default; default/lake=s3://bucket/warehouse",  # the second for statistics
        "warehouse.vending.credentials": "static",
        "warehouse.vending.static.accounts": "default",
        "warehouse.vending.static.read_access_key_id": "admin",
        "warehouse.vending.static.read_secret_access_key": "password",
        "warehouse.vending.static.write_access_key_id": "admin",
        "warehouse.vending.static.write_secret_access_key": "password",
        "storage.aws.region": "us-east-1",
        "storage.aws.access_key_id": "admin",
        "storage.aws.secret_access_key": "password",
        "storage.aws.s3.endpoint": s3,
    }
    return [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]


def _run(command: list[str], suite: Path, *, check: bool = True) -> None:
    variables = environment(PYTHONPATH=f"{suite}:{CACHE / 'packages'}", AWS_EC2_METADATA_DISABLED="true")
    subprocess.run(command, cwd=suite, env=variables, check=check)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run PyIceberg's integration tests against a server.")
    parser.add_argument("--tests", default="", help="run only these tests; an expression as of `pytest -k`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
