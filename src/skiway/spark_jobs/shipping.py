"""Python for the tasks of a cluster whose machines lack Skiway: an archive with it and its libraries, which Spark sends to them.

A small task finds out if that is needed, once for each Spark. The archive has no Python of its own: a script in it starts that of the
machine, which must have the same version and platform.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from shutil import rmtree
from tempfile import NamedTemporaryFile, mkdtemp
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement

import skiway
from skiway.errors import PreconditionFailed
from skiway.spark_jobs.interruption import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME: Final = "skiway-python"
_PYTHON: Final = "spark.sql.execution.pyspark.python"
_EXTRAS: Final = frozenset(("lake", "spark"))
_NOT_SENT: Final = frozenset(("pyspark", "py4j", "duckdb"))
"""Spark has its own, and tasks run no SQL."""

_NEEDED: Final = ("pyarrow", "pyiceberg", "skiway")
_TASKS: Final = 8

_SHIPPED: Final[dict[str, bool]] = {}
_LOCK: Final = Lock()

log = logging.getLogger("skiway.spark")


def ship_python(session: SparkSession) -> None:
    """Let the tasks of a session on a cluster use the archive, if they lack Skiway."""
    where = _place_of(session)
    with _LOCK:
        if where not in _SHIPPED:
            reason = _missing(session)
            _SHIPPED[where] = bool(reason)
            if reason:
                log.info("the machines of %s lack what tasks need (%s): it is sent to them", where, reason)
                if not is_remote(session):
                    session.sparkContext.addArchive(f"{_archive()}#{_NAME}")
    if not _SHIPPED[where]:
        return
    if is_remote(session):
        session.addArtifacts(f"{_archive()}#{_NAME}", archive=True)
    session.conf.set(_PYTHON, f"./{_NAME}/bin/python")


def _place_of(session: SparkSession) -> str:
    if not is_remote(session):
        return str(session.sparkContext.applicationId)
    internal: Any = session
    return str(internal.client.host)


def _missing(session: SparkSession) -> str:
    """Why tasks cannot run; empty if they can. The function runs without Skiway and Arrow."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    needed, version = _NEEDED, skiway.__version__

    def lacking(_: int) -> str:
        from importlib import metadata, util

        found = [name for name in needed if util.find_spec(name) is None]
        if not found and metadata.version("skiway") != version:
            found = [f"skiway {version}"]
        return ", ".join(found)

    try:
        probe: Any = udf(lacking, "string", useArrow=False)
        rows = session.range(0, _TASKS, 1, _TASKS).select(probe("id").alias("found")).distinct().limit(_TASKS).collect()
    except PySparkException as error:
        return str(error).partition("\n")[0][:200]
    return next((row.found for row in rows if row.found), "")


@cache
def _archive() -> Path:
    """The archive, which is removed when this process ends."""
    folder = Path(mkdtemp(prefix="skiway-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    place = folder / f"{_NAME}.tar.gz"
    with tarfile.open(place, mode="w:gz", compresslevel=1) as archive:
        for name, file in _files():
            archive.add(file, f"lib/{name}")
        _add_script(archive)
    return place


def _add_script(archive: tarfile.TarFile) -> None:
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        "#!/bin/sh",
        'here=$(cd "$(dirname "$0")/.." && pwd)',
        'PYTHONPATH="$here/lib:$PYTHONPATH"; export PYTHONPATH',
        f"for each in {own} {os.path.realpath(sys.executable)}; do",
        '  if command -v "$each" >/dev/null; then exec "$each" "$@"; fi',
        "done",
        f'echo "Cannot run program {own}: install it on this machine" >&2; exit 127',
    ]
    with NamedTemporaryFile("w", suffix=".sh") as script:
        script.write("\n".join(lines) + "\n")
        script.flush()
        info = archive.gettarinfo(script.name, "bin/python")
        info.mode = 0o755
        with Path(script.name).open("rb") as content:
            archive.addfile(info, content)


def _files() -> Iterator[tuple[str, Path]]:
    """The files of Skiway and of its libraries, by their names below the folder of libraries."""
    root = Path(skiway.__file__).parent
    for file in root.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"skiway/{file.relative_to(root)}", file
    for name in _distributions():
        for each in metadata.distribution(name).files or ():
            file = Path(str(each.locate()))
            is_outside = each.parts[0] in ("..", "skiway") or "__pycache__" in each.parts
            if not is_outside and not each.name.endswith(".pth") and file.is_file():
                yield str(each), file


def _distributions() -> set[str]:
    """The names of all packages that tasks may import, as far as they are installed."""
    found: dict[str, set[str]] = {}
    waiting = [("skiway", set(_EXTRAS))]
    while waiting:
        name, extras = waiting.pop()
        key = name.lower().replace("_", "-")
        if key in _NOT_SENT or (key in found and extras <= found[key]):
            continue
        found.setdefault(key, set()).update(extras)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError as error:
            if key == "skiway":
                raise PreconditionFailed(
                    "Skiway is not installed as a package, so it cannot be sent to a cluster"
                ) from error
            del found[key]
            continue
        for each in map(Requirement, required):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((each.name, set(each.extras)))
    return set(found)
