"""Settings of logs, audit, metrics and traces."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from skiway.config.fields import (
    COUNT,
    DURATION,
    FLAG,
    PATH,
    SECRET,
    TEXT,
    WEB_URL,
    Secret,
    choice,
    number,
    section,
    setting,
    whole,
)

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogFormat = Literal["auto", "json", "text"]

MEGABYTE = 1_000_000


@section
class Rotation:
    """Rotation of a log or audit file."""

    max_bytes: int = setting(20 * MEGABYTE, whole(at_least=1_000, of=" of bytes"), "Size at which the file is rotated.")
    keep: int = setting(14, COUNT, "Number of rotated files to keep.")


@section
class Log:
    """The log."""

    level: LogLevel = setting("INFO", choice(LogLevel), "Minimum level; libraries log at `WARNING` or above.")
    format: LogFormat = setting(
        "auto",
        choice(LogFormat),
        "Format on stderr; `auto` is text on a terminal and JSON otherwise.",
    )
    file: Path | None = setting(None, PATH, "File that receives every line as JSON, in addition to stderr.")
    rotation: Rotation = Rotation()


@section
class Audit:
    """The audit trail."""

    enabled: bool = setting(True, FLAG, "Write an audit record for every call.")
    directory: Path | None = setting(None, PATH, "Directory of the audit files, one per category.", under_home="audit")
    required: bool = setting(False, FLAG, "Fail a call whose audit record cannot be written.")
    fsync: bool = setting(False, FLAG, "Flush each record to disk before the response is sent.")
    rotation: Rotation = Rotation()


@section
class MetricsOutput:
    """Metrics."""

    enabled: bool = setting(True, FLAG, "Collect metrics.")
    strict: bool = setting(False, FLAG, "Fail on an undeclared tag of a metric instead of dropping it.")


@section
class Traces:
    """Traces."""

    enabled: bool = setting(
        False, FLAG, "Trace calls: add trace ids to logs, and send spans to `telemetry.otlp.endpoint`."
    )
    sample_ratio: float = setting(
        1.0, number(at_most=1), "Fraction of calls to trace when the caller has made no sampling decision."
    )


@section
class Otlp:
    """The OpenTelemetry collector that receives metrics and traces."""

    endpoint: str | None = setting(
        None,
        WEB_URL,
        "Base URL of the OTLP/HTTP collector, such as `http://127.0.0.1:4318`; unless set, nothing is exported.",
    )
    headers: Secret | None = setting(None, SECRET, "Headers for the collector, as `name=value,name=value`.")
    timeout_seconds: float = setting(10.0, number(at_least=0.001, of=" of seconds"), "Timeout of an export.")
    metrics_every: timedelta = setting(timedelta(seconds=60), DURATION, "Interval between exports of metrics.")


@section
class Lineage:
    """OpenLineage events of pipelines and copies. Without `url` and `file`, none are made."""

    url: str | None = setting(None, WEB_URL, "Server that receives the events at `/api/v1/lineage`.")
    api_key: Secret | None = setting(None, SECRET, "Key that this server requires.")
    file: Path | None = setting(None, PATH, "File that events are appended to, one per line, if there is no `url`.")
    namespace: str = setting("skiway", TEXT, "Namespace of the jobs and tables of this lake.")


@section
class Telemetry:
    """Metrics, traces and lineage."""

    service_name: str = setting("skiway", TEXT, "Service name in metrics and traces.")
    metrics: MetricsOutput = MetricsOutput()
    traces: Traces = Traces()
    otlp: Otlp = Otlp()
    lineage: Lineage = Lineage()
