"""Checks of the machine: Python, the installed packages, Java and Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Final

from skiway import __version__
from skiway.doctor.findings import Check, Problem
from skiway.errors import PreconditionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["machine_checks"]

OLDEST_PYTHON: Final = (3, 11)
EXTRAS: Final = ("", "lake", "geometry", "memory", "sql")
"""Those of a server. The first has the packages that are always needed."""


def machine_checks(*, start_spark: Callable[[], SparkSession] | None = None) -> dict[str, Check]:
    """The checks, by name. Starting Spark takes some seconds, so it is not started unless a function is given for it."""
    return {"python": python, "packages": packages, "java": java, "spark": lambda: spark(start_spark)}


def python() -> str:
    """The version of Python is supported."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise Problem(f"this is Python {found}", "install Python 3.11 or newer, and Skiway with it")
    return f"Python {found} at {sys.executable}"


def packages() -> str:
    """All packages that a server needs are installed, in supported versions."""
    wrong = list(_wrong_packages())
    if wrong:
        raise Problem("; ".join(wrong), "install them in supported versions: pip install --upgrade 'skiway[lake]'")
    return f"skiway {__version__}, and all packages that a server needs"


def _wrong_packages() -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in metadata.requires("skiway") or ():
        needed = Requirement(text)
        if needed.marker is not None and not any(needed.marker.evaluate({"extra": extra}) for extra in EXTRAS):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield f"{needed.name} is not installed"
            continue
        if not needed.specifier.contains(found, prereleases=True):
            yield f"{needed.name} is {found}, but {needed.specifier} is needed"


def java() -> str:
    """There is a Java that Spark can use."""
    from skiway.pipeline.java import ensure_java

    try:
        found = ensure_java()
    except PreconditionFailed as error:
        raise Problem(error.message, "install Java 17 or newer, or: pip install 'skiway[spark]'") from error
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    if shown.returncode:
        lines = shown.stderr.strip().splitlines() or [f"exit code {shown.returncode}"]
        raise Problem(f"{found} does not start: {lines[-1]}", "install Java 17 or newer, and set JAVA_HOME to it")
    return f"{shown.stderr.strip().splitlines()[0]} at {found}"


def spark(start: Callable[[], SparkSession] | None) -> str:
    """Spark is installed, and starts if there is a function for it."""
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise Problem("pyspark is not installed, so tables are not profiled", "pip install 'skiway[spark]'") from None
    if start is None:
        return f"pyspark {found} is installed; --start-spark starts it"
    session = start()
    try:
        return f"Spark {session.version} has counted {session.range(1000).count()} rows"
    finally:
        session.stop()
