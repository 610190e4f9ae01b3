"""The one place that knows how a Spark session is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from skiway import extras
from skiway.errors import InvalidArgument, PreconditionFailed, Unavailable
from skiway.pipeline.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Setting", "SparkPlace", "own_session", "session", "settings_for", "work_at"]

Setting: TypeAlias = bool | int | float | str

_DEFAULTS: dict[str, Setting] = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}

# On one machine nobody outside has a reason to reach the driver. The executors of a cluster do.
_LOOPBACK: dict[str, Setting] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where a process has its Spark session: at a master, or at a Connect server, with settings of Spark's own."""

    master: str = "local[*]"
    remote: str = ""
    conf: Mapping[str, Setting] = field(default_factory=dict)


# A process has one Spark session at most, whoever asks for it; so it has one place for it, chosen when it starts.
_chosen: Final = [SparkPlace()]


def work_at(place: SparkPlace) -> None:
    """From now on `own_session` is there. For those who start a process; a session that runs stays where it is."""
    settings_for(place.master, **place.conf)
    _chosen[:] = [place]


def own_session() -> SparkSession:
    """The Spark session of this process, made where `work_at` has said, on this machine unless it has."""
    (place,) = _chosen
    return session("skiway", place.master, remote=place.remote, **place.conf)


def session(app: str, master: str = "local[*]", *, remote: str = "", **settings: Setting) -> SparkSession:
    """The Spark session of this process, made if there is none.

    `settings` are Spark's own (`**{"spark.driver.memory": "2g"}`) and win over `settings_for(master)`. No jars are
    needed. A running session is given again, with its runtime settings changed, if it can be what is asked for;
    otherwise PreconditionFailed says what differs.

    With `remote`, the address of a Spark Connect server (`sc://host:15002`), the session is there: this process needs
    no Java, `master` is the server's own affair, and of the settings only those that can change at run time count.
    """
    extras.require("pyspark", extra="spark", purpose="a Spark session")
    if remote:
        return _remote_session(remote, settings_for(remote, **settings))
    wanted = settings_for(master, **settings)
    _prepare_environment(master)
    from pyspark.sql import SparkSession

    _check_running({"spark.master": master, **settings})
    return SparkSession.builder.appName(app).master(master).config(map={**wanted}).getOrCreate()


def _remote_session(remote: str, settings: dict[str, Setting]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise InvalidArgument(f"{remote!r} is no address of a Spark Connect server; write sc://host:15002")
    try:
        found = SparkSession.builder.remote(remote).getOrCreate()
        for name, value in settings.items():
            if found.conf.isModifiable(name):
                found.conf.set(name, _as_text(value))
    except PySparkException as error:
        raise Unavailable(
            f"the Spark Connect server at {remote} does not answer: {str(error).partition(chr(10))[0]}; is it running?",
            key="spark.remote",
        ) from error
    return found


def settings_for(master: str, **settings: Setting) -> dict[str, Setting]:
    """What a session on `master` is made with: UTC, no web page, errors only in the log, local ones on loopback."""
    for name in settings:
        if not name.startswith("spark."):
            raise InvalidArgument(
                f"{name!r} is no Spark setting and would be ignored; their names start with 'spark.', "
                'as in session("app", **{"spark.driver.memory": "2g"})'
            )
    return _DEFAULTS | (_LOOPBACK if _is_local(master) else {}) | settings


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _prepare_environment(master: str) -> None:
    """What Spark takes from the environment only."""
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whatever python3 is on PATH
    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _check_running(asked: dict[str, Setting]) -> None:
    """Refuse what only a fresh session can have: Spark would write it down in the running one and not heed it."""
    running = _running_session()
    if running is None:
        return
    for name, value in asked.items():
        found = running.conf.get(name, None)
        if found != _as_text(value) and not running.conf.isModifiable(name):
            raise PreconditionFailed(
                f"asked for a Spark session with {name}={_as_text(value)}, but this process runs one where it is "
                f"{'not set' if found is None else found}; stop() that one first, or ask from another process",
                key="spark.session.running",
            )


def _running_session() -> SparkSession | None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()  # of any thread, unlike getActiveSession()
    except PySparkRuntimeError:
        return None


def _as_text(value: Setting) -> str:
    """How Spark writes it down."""
    return str(value).lower() if isinstance(value, bool) else str(value)
