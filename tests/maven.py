"""Jars and archives from Maven, fetched by the Ivy that comes with Spark."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

from skiway.spark_jobs.java import ensure_java

__all__ = ["fetch", "fetch_archive", "spark_jars"]

_ARCHIVE = """<ivy-module version="2.0">
  <info organisation="org.skiway" module="tests"/>
  <dependencies>
    <dependency org="{group}" name="{name}" rev="{version}" transitive="false">
      <artifact name="{name}" type="{extension}" ext="{extension}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def spark_jars() -> Path:
    """The folder with Spark's own jars."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent / "jars"


def fetch(coordinates: str, folder: Path, *, timeout_s: float, transitive: bool = True) -> bool:
    """Fetch a jar, and those that it needs, into a folder; whether that was possible."""
    group, name, version = coordinates.split(":")
    what: list[str | Path] = ["-dependency", group, name, version, *([] if transitive else ["-notransitive"])]
    return _run_ivy(what, folder, timeout_s) and any(folder.glob(f"{name}-*.jar"))


def fetch_archive(coordinates: str, extension: str, folder: Path, *, timeout_s: float) -> Path | None:
    """Fetch a file that is no jar, such as a `tar.gz`, into a folder; None if that was not possible."""
    group, name, version = coordinates.split(":")
    folder.mkdir(parents=True, exist_ok=True)
    description = folder / f"{name}.ivy.xml"
    description.write_text(_ARCHIVE.format(group=group, name=name, version=version, extension=extension))
    found = folder / f"{name}-{version}.{extension}"
    return found if _run_ivy(["-ivy", description], folder, timeout_s) and found.is_file() else None


def _run_ivy(what: list[str | Path], folder: Path, timeout_s: float) -> bool:
    [ivy] = spark_jars().glob("ivy-*.jar")
    command: list[str | Path] = [
        ensure_java(), "-jar", ivy, *what, "-confs", "default",
        "-cache", folder.parent / "ivy", "-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-warn",
    ]  # fmt: skip
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
