"""Jars from Maven, fetched by the Ivy that comes with Spark."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

from skiway.spark_jobs.java import ensure_java

__all__ = ["fetch", "spark_jars"]


def spark_jars() -> Path:
    """The folder with Spark's own jars."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent / "jars"


def fetch(coordinates: str, folder: Path, *, timeout_s: float, transitive: bool = True) -> bool:
    """Fetch a jar, and those that it needs, into a folder; whether that was possible."""
    group, name, version = coordinates.split(":")
    [ivy] = spark_jars().glob("ivy-*.jar")
    command: list[str | Path] = [
        ensure_java(), "-jar", ivy, "-dependency", group, name, version, "-confs", "default",
        *([] if transitive else ["-notransitive"]),
        "-cache", folder.parent / "ivy", "-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-warn",
    ]  # fmt: skip
    try:
        run = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0 and any(folder.glob(f"{name}-*.jar"))
