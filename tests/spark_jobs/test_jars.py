"""The jars of jobs on Spark: which are fetched, where they are kept, and what happens without a registry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skiway.errors import PreconditionFailed, Unavailable
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs import session
from skiway.spark_jobs.java import ICEBERG, add_jar, cached_jar, iceberg_settings
from skiway.spark_jobs.optimizer import SparkOptimizer
from skiway.spark_jobs.session import SparkPlace
from skiway.spark_jobs.worker import SparkCopies

EXTENSIONS = {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no configuration of Spark."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    return tmp_path / ".ivy2.5.2"


def cache(ivy: Path) -> Path:
    group, name, version = ICEBERG.split(":")
    jar = ivy / "cache" / group / name / "jars" / f"{name}-{version}.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    return jar


def test_iceberg_is_fetched_only_for_those_who_need_it(ivy: Path) -> None:
    assert iceberg_settings({}, fetch=False) == {}
    assert iceberg_settings({}, fetch=True) == {"spark.jars.packages": ICEBERG, **EXTENSIONS}


def test_iceberg_in_the_cache_is_in_every_session(ivy: Path, tmp_path: Path) -> None:
    jar = cache(ivy)
    for fetch in (False, True):
        assert iceberg_settings({}, fetch=fetch) == {"spark.jars": str(jar), **EXTENSIONS}
    other = tmp_path / "other"
    assert iceberg_settings({"spark.jars.ivy": str(other)}, fetch=False) == {}
    assert cached_jar(ICEBERG, str(other)) is None


def test_jars_of_the_operator_stay(ivy: Path, tmp_path: Path) -> None:
    chosen = {"spark.jars.packages": "a:b:1", "spark.jars": "/x.jar", "spark.sql.extensions": "E"}
    found = iceberg_settings(chosen, fetch=True)
    assert found["spark.jars.packages"] == f"a:b:1,{ICEBERG}"
    assert found["spark.sql.extensions"].startswith("E,org.apache.iceberg")
    jar = cache(ivy)
    assert iceberg_settings(chosen, fetch=True)["spark.jars"] == f"/x.jar,{jar}"
    for name in ("spark.jars", "spark.jars.packages"):
        assert iceberg_settings({name: ICEBERG.replace("1.12.0", "1.13.0")}, fetch=True) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.jars.packages a:b:1\n")
    assert iceberg_settings({}, fetch=True) == {}


def test_operator_can_forbid_it(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, object]] = []

    def no_session(*_: object, jars: Mapping[str, object], **__: object) -> None:
        asked.append(jars)
        raise Unavailable("this test starts no Spark")

    monkeypatch.setattr(session, "session", no_session)
    for place in (SparkPlace(fetch_jars=False), SparkPlace(remote="sc://host:15002"), SparkPlace()):
        with pytest.raises(Unavailable):
            place.session_with_iceberg()
    assert asked == [{}, {}, {"spark.jars.packages": ICEBERG, **EXTENSIONS}]

    def no_spark() -> Any:
        raise AssertionError("no driver is fetched")

    sqlite = {"options": {}, "credentials": {}, "access": SourceAccess()}
    SparkCopies(no_spark, fetch_drivers=False).database("sqlite:////tmp/x.db", **sqlite)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="no driver"):
        SparkCopies(no_spark).database("sqlite:////tmp/x.db", **sqlite)  # type: ignore[arg-type]


def test_java_starts_without_jars_that_cannot_be_fetched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.errors import PySparkRuntimeError

    started: list[Mapping[str, str]] = []

    def launch(settings: Mapping[str, str]) -> None:
        started.append(settings)
        if "spark.jars.packages" in settings:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "launch_java", launch)
    assert session._launched_with_jars("a", "local", {"x": True}, {"spark.jars.packages": "a:b:1"}) == {"x": True}
    assert [each.get("spark.jars.packages") for each in started] == ["a:b:1", None]
    assert "a:b:1" in caplog.text
    assert session._launched_with_jars("a", "local", {}, {"spark.jars": "/a.jar"}) == {"spark.jars": "/a.jar"}


class Failing:
    """A session in which nothing can be fetched."""

    def sql(self, _: str) -> None:
        raise RuntimeError("[unresolved dependency]\nmore")


def test_jar_that_cannot_be_added_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert not add_jar(Failing(), "a:b:1")  # type: ignore[arg-type]
    assert "a:b:1 cannot be fetched: [unresolved dependency]" in caplog.text


@pytest.mark.parametrize(
    ("fetch_jars", "reachable", "advice"),
    [(True, True, "restart the worker once"), (True, False, f"fetch {ICEBERG}"), (False, True, f"fetch {ICEBERG}")],
)
def test_running_session_without_iceberg_is_explained(fetch_jars: bool, reachable: bool, advice: str) -> None:
    fetched: list[str] = []

    def resolve(uri: str) -> None:
        fetched.append(uri)
        if not reachable:
            raise RuntimeError("unresolved dependency")

    utils = SimpleNamespace(resolveMavenDependencies=resolve)
    java = SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(util=SimpleNamespace(DependencyUtils=utils)))),
        java=SimpleNamespace(net=SimpleNamespace(URI=str)),
    )
    optimizer = SparkOptimizer(lambda: Failing(), str, lambda *_: "", fetch_jars=fetch_jars)  # type: ignore[arg-type, return-value]
    error = optimizer._without_iceberg(SimpleNamespace(_jvm=java))  # type: ignore[arg-type]
    assert isinstance(error, PreconditionFailed)
    assert advice in error.message
    assert fetched == ([f"ivy://{ICEBERG}?transitive=false"] if fetch_jars else [])


# --- in processes of their own ----------------------------------------------------------------------------------------

SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
from skiway.spark_jobs.session import SparkPlace
conf = dict(each.split("=", 1) for each in sys.argv[2:])
spark = SparkPlace("local[1]", conf=conf).session_with_iceberg()
if sys.argv[1] == "none":
    assert spark.range(3).count() == 3
else:
    spark.conf.set("spark.sql.catalog.c", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.c.type", "hadoop")
    spark.conf.set("spark.sql.catalog.c.warehouse", sys.argv[1])
    spark.sql("CREATE TABLE c.s.t USING iceberg AS SELECT id, id AS v FROM range(0, 10, 1, 2)")
    how = "strategy => 'sort', sort_order => 'zorder(id, v)', options => map('rewrite-all', 'true')"
    (row,) = spark.sql(f"CALL c.system.rewrite_data_files(table => 's.t', {how})").collect()
    assert row.rewritten_data_files_count > 0, row
"""


@pytest.fixture
def run() -> Callable[..., str]:
    def started(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return started


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(320)
def test_spark_starts_without_a_registry(run: Callable[..., str], tmp_path: Path) -> None:
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"
    said = run("none", f"spark.jars.ivy={tmp_path}", f"spark.driver.extraJavaOptions={nowhere}")
    assert f"Java did not start with {ICEBERG}" in said


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(320)
def test_spark_optimizes_without_any_setting(run: Callable[..., str], tmp_path: Path) -> None:
    said = run(str(tmp_path))
    if "Java did not start with" in said:
        pytest.skip("Iceberg could not be fetched; to get it: run once with a network")
