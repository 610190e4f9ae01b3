"""The jars that jobs on Spark need, by their Maven coordinates.

Spark fetches them with its own Ivy, from the registry that Ivy is configured for, when a job first needs them, and keeps them in Ivy's
cache. Drivers of databases are added to a running session. Iceberg has to be there when Java starts: a session that is started to
optimize a table fetches it, and every other session has it if it is in the cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ICEBERG", "add_jar", "cached_jar", "fetched", "iceberg_settings"]

ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_IVY: Final = "~/.ivy2.5.2"
"""Where Spark 4 keeps the cache of Ivy."""

_JARS: Final = ("spark.jars", "spark.sql.extensions")
"""How the settings begin that decide about jars."""

log = logging.getLogger("skiway.spark")


def iceberg_settings(given: Mapping[str, object], *, fetch: bool) -> dict[str, str]:
    """The settings that start Spark with Iceberg, in addition to those that are given.

    There are none if the operator has already chosen jars with Iceberg, or any jars in `spark-defaults.conf`, and none if Iceberg is not
    in the cache and not to be fetched.
    """
    chosen = [str(given.get(name, "")) for name in ("spark.jars", "spark.jars.packages")]
    if any("iceberg-spark-runtime" in each for each in chosen) or _has_default_jars():
        return {}
    if jar := cached_jar(ICEBERG, str(given.get("spark.jars.ivy", ""))):
        jars = {"spark.jars": _joined(chosen[0], str(jar))}
    elif fetch:
        jars = {"spark.jars.packages": _joined(chosen[1], ICEBERG)}
    else:
        return {}
    return {**jars, "spark.sql.extensions": _joined(str(given.get("spark.sql.extensions", "")), _EXTENSIONS)}


def cached_jar(coordinates: str, ivy: str = "") -> Path | None:
    """The jar in the cache of Ivy, if it has been fetched."""
    group, name, version = coordinates.split(":")
    jar = Path(ivy or _IVY).expanduser() / "cache" / group / name / "jars" / f"{name}-{version}.jar"
    return jar if jar.is_file() else None


def add_jar(spark: SparkSession, coordinates: str) -> bool:
    """Add a jar to a session; whether that was possible."""
    return _succeeds(coordinates, lambda: spark.sql(f"ADD JAR '{_address(coordinates)}'"))


def fetched(spark: SparkSession, coordinates: str) -> bool:
    """Fetch a jar into the cache, for sessions that are started later; whether that was possible."""

    def fetch() -> None:
        java: Any = spark._jvm  # a session of Spark Connect has none
        java.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(java.java.net.URI(_address(coordinates)))

    return _succeeds(coordinates, fetch)


def _succeeds(coordinates: str, fetch: Callable[[], object]) -> bool:
    try:
        fetch()
    except Exception as error:  # noqa: BLE001 - Spark and Ivy raise anything
        log.warning("the jar %s cannot be fetched: %s", coordinates, str(error).partition("\n")[0])
        return False
    return True


def _address(coordinates: str) -> str:
    return f"ivy://{coordinates}?transitive=false"


def _joined(*parts: str) -> str:
    return ",".join(filter(None, parts))


def _has_default_jars() -> bool:
    """Whether Spark's own configuration names jars, which settings of ours would replace."""
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.lstrip().startswith(_JARS) for line in lines)
