"""Spark sessions: in this process, on a cluster, or on a Spark Connect server.

A process has one Spark at a time, which `SparkPlace` starts, and starts again after it has ended. Each job gets a session of its own
there, so that no job sees the settings and temporary views of another. `PINNED` has the settings on which the results of jobs depend.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from skiway.errors import InvalidArgument, PreconditionFailed, Unavailable
from skiway.foundation import extras
from skiway.spark_jobs.interruption import is_remote, joined, left, session_of_job
from skiway.spark_jobs.java import ensure_java, iceberg_settings
from skiway.spark_jobs.java_output import discard_java, java_process, launch_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("skiway.spark")

Setting: TypeAlias = bool | int | float | str

# JDBC drivers take a timestamp without a time zone for one of the machine's zone, where some times do not exist.
_UTC = "-Duser.timezone=UTC"

# Otherwise fetching a jar would wait for minutes if a firewall drops the packets.
_TIMEOUTS = "-Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=60000"

# Otherwise Java goes on after it has run out of memory, without the threads that Spark needs.
_EXIT: Final = "-XX:+ExitOnOutOfMemoryError"

_DEFAULTS: dict[str, Setting] = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.driver.defaultJavaOptions": f"{_UTC} {_TIMEOUTS} {_EXIT}",
    "spark.executor.defaultJavaOptions": _UTC,
}

PINNED: Final[Mapping[str, Setting]] = {
    "spark.sql.ansi.enabled": True,  # otherwise a value that cannot be cast becomes NULL
    "spark.sql.caseSensitive": False,
    "spark.sql.files.ignoreCorruptFiles": False,
    "spark.sql.files.ignoreMissingFiles": False,
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.runSQLOnFiles": False,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": False,  # it inserts settings of the server into SQL
}
"""The settings of the sessions of jobs, on which their results depend. The operator cannot change them."""

_STARTING: Final = Lock()
"""Held while Spark starts: a process has one Java, even if several jobs need it at the same time."""

# In local mode nothing outside this machine needs to reach the driver. The executors of a cluster do.
_LOOPBACK: dict[str, Setting] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where Spark runs: on a master, or on a Spark Connect server if `remote` is set. `conf` are Spark settings.

    With `fetch_jars`, jars that jobs need are fetched (see `skiway.spark_jobs.java`).
    """

    master: str = "local[*]"
    remote: str = ""
    conf: Mapping[str, Setting] = field(default_factory=dict)
    fetch_jars: bool = True

    def __post_init__(self) -> None:
        settings_for(self.master, **self.conf)  # raises InvalidArgument for a wrong name

    def session(self) -> SparkSession:
        """Return a session with the settings `PINNED`, starting Spark if it does not run.

        A job has one session, for all of its threads. It ends with the job, and what runs in it is interrupted when the job is
        cancelled. Outside of jobs, every call returns a new session.
        """
        return session_of_job(lambda: self._new_session(fetch=False))

    def session_with_iceberg(self) -> SparkSession:
        """The same session. If Spark is started here, Iceberg is fetched for it; a running Spark stays as it is."""
        return session_of_job(lambda: self._new_session(fetch=True))

    def revive(self) -> bool:
        """Start Spark again if it has ended. If that fails, log the reason and return False."""
        if self.remote or not has_spark_ended():
            return True
        try:
            self._started(fetch=False)
        except Exception:
            log.exception("Spark cannot be started again")
            return False
        log.info("Spark was started again")
        return True

    def only_session(self) -> SparkSession:
        """Return the session that Spark starts with, for a process that runs nothing else."""
        return self._started(fetch=False)

    def _new_session(self, *, fetch: bool) -> SparkSession:
        started = self._started(fetch=fetch)
        return started if is_remote(started) else _separated(started, PINNED)

    def _started(self, *, fetch: bool) -> SparkSession:
        """The session of this process, which no job uses; on a Spark Connect server a new one."""
        _warn_of_fixed(tuple(name for name, value in PINNED.items() if _differs(self.conf.get(name, value), value)))
        jars = iceberg_settings(self.conf, fetch=fetch) if self.fetch_jars and not self.remote else {}
        return session("skiway", self.master, remote=self.remote, jars=jars, **{**self.conf, **PINNED})


@cache
def _warn_of_fixed(names: tuple[str, ...]) -> None:
    """Log once that settings of the operator have no effect."""
    if names:
        fixed = ", ".join(f"{name}={_as_text(PINNED[name])}" for name in names)
        log.warning("these settings of Spark are fixed, and the configured values have no effect: %s", fixed)


def _differs(value: Setting, other: Setting) -> bool:
    return _as_text(value).lower() != _as_text(other).lower()


@contextmanager
def separate_session(session: SparkSession, settings: Mapping[str, Setting]) -> Iterator[SparkSession]:
    """A session like this one, but with other settings, for a part of a job. It ends with the block."""
    own = joined(_separated(session, settings))
    try:
        yield own
    finally:
        left(own)
        with suppress(Exception):  # Java may have ended, which is not the error to report
            joined(session)


def _separated(session: SparkSession, settings: Mapping[str, Setting]) -> SparkSession:
    """A new session with the settings of another one, and these."""
    texts = {name: _as_text(value) for name, value in settings.items()}
    internal: Any = session
    if not is_remote(session):
        # A new session of Spark only has the settings with which Spark was started.
        options = {**session.conf.getAll, **texts}
        return type(session)(session.sparkContext, internal._jsparkSession.newSession(), options)
    internal = internal.cloneSession()
    internal.release_session_on_close = True  # PySpark 4.1 does not set it in clones, so that they cannot be stopped
    own: SparkSession = internal
    for name, text in texts.items():
        own.conf.set(name, text)
    return own


def session(
    app: str,
    master: str = "local[*]",
    *,
    remote: str = "",
    jars: Mapping[str, Setting] | None = None,
    **settings: Setting,
) -> SparkSession:
    """Return the Spark session of this process, starting one if there is none. All callers share it: jobs use `SparkPlace`.

    `settings` are Spark settings (`**{"spark.driver.memory": "2g"}`) and override `settings_for(master)`. `jars` are further
    settings for a session that is started here; if their packages cannot be fetched, Spark starts without them. A running
    session is reused, with its runtime settings changed. If it differs in a setting that cannot be changed at run time,
    PreconditionFailed names the setting.

    With `remote`, the address of a Spark Connect server (`sc://host:15002`), a new session runs on that server. This
    process then needs no Java, `master` is ignored, and only runtime settings are applied.
    """
    extras.require("pyspark", extra="spark", purpose="a Spark session")
    if remote:
        return _remote_session(remote, settings_for(remote, **settings))
    wanted = settings_for(master, **settings)
    _prepare_environment(master)
    from pyspark.sql import SparkSession

    with _STARTING:
        discard_java()
        _check_running({"spark.master": master, **settings})
        if jars and _running_session() is None:
            wanted = _launched_with_jars(app, master, wanted, jars)
        else:
            _launch(app, master, wanted)
        return SparkSession.builder.appName(app).master(master).config(map={**wanted}).getOrCreate()


def _launch(app: str, master: str, settings: Mapping[str, Setting]) -> None:
    launch_java(
        {"spark.app.name": app, "spark.master": master, **{name: _as_text(each) for name, each in settings.items()}}
    )


def _launched_with_jars(
    app: str, master: str, settings: Mapping[str, Setting], jars: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Start Java with these jars, or without them if they cannot be fetched. Returns the settings that it has."""
    from pyspark.errors import PySparkRuntimeError

    try:
        _launch(app, master, {**settings, **jars})
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        named = jars.get("spark.jars.packages") or jars.get("spark.jars")
        log.warning("Java did not start with %s, which may not be reachable: starting it without", named)
        _launch(app, master, settings)
        return {**settings}
    return {**settings, **jars}


def _remote_session(remote: str, settings: dict[str, Setting]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise InvalidArgument(f"{remote!r} is not the address of a Spark Connect server; use sc://host:15002")
    if "session_id=" in remote:
        raise InvalidArgument(f"{remote!r} names a session, but each job has a session of its own: remove session_id")
    try:
        with _STARTING:
            created: SparkSession = SparkSession.builder.remote(remote).create()
        for name, value in settings.items():
            if created.conf.isModifiable(name):
                created.conf.set(name, _as_text(value))
    except PySparkException as error:
        raise Unavailable(
            f"the Spark Connect server at {remote} does not respond: {str(error).partition(chr(10))[0]}; is it running?",
            key="spark.remote",
        ) from error
    return created


def settings_for(master: str, **settings: Setting) -> dict[str, Setting]:
    """The settings of a session on `master`: UTC, no web UI, log level ERROR, and loopback only in local mode."""
    for name in settings:
        if not name.startswith("spark."):
            raise InvalidArgument(
                f"{name!r} is not a Spark setting and would be ignored; the names of Spark settings start with 'spark.', "
                'as in session("app", **{"spark.driver.memory": "2g"})'
            )
    return _DEFAULTS | (_LOOPBACK if _is_local(master) else {}) | settings


def spark_ui() -> str:
    """The address of the web interface of the running session; empty if there is none. No session is started."""
    with suppress(Exception):  # Java may have ended
        running = _running_session() if "pyspark.sql" in sys.modules else None
        context = getattr(running, "_sc", None)  # a session of Spark Connect has none
        return str(getattr(context, "uiWebUrl", None) or "")
    return ""


def has_spark_ended() -> bool:
    """Whether the Java process of Spark has ended, and no other one was started."""
    java = java_process()
    return java is not None and java.has_exited


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _prepare_environment(master: str) -> None:
    """Set what Spark reads from the environment, and keep secrets out of logs."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # below, it logs all calls to Java, with passwords and tokens
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the python3 on PATH
    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _check_running(settings: dict[str, Setting]) -> None:
    """Raise if a setting differs that only a new session can have: a running one would store it but ignore it."""
    running = _running_session()
    if running is None:
        return
    for name, value in settings.items():
        found = running.conf.get(name, None)
        if found != _as_text(value) and not running.conf.isModifiable(name):
            raise PreconditionFailed(
                f"cannot start a Spark session with {name}={_as_text(value)}: this process runs one where it is "
                f"{'not set' if found is None else found}; stop that session first, or use another process",
                key="spark.session.running",
            )


def _running_session() -> SparkSession | None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()  # finds sessions of all threads, unlike getActiveSession()
    except PySparkRuntimeError:
        return None


def _as_text(value: Setting) -> str:
    """Format the value as Spark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
