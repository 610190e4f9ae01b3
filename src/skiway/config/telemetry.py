"""Settings of what a server tells: logs, audit, metrics, traces."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from skiway.config.fields import section, setting
from skiway.config.values import COUNT, DURATION, FLAG, PATH, SECRET, TEXT, WEB_URL, Secret, choice, number, whole

__all__ = ["Audit", "Log", "Otlp", "Rotation", "Telemetry"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogFormat = Literal["auto", "json", "text"]

MEGABYTE = 1_000_000


@section
class Rotation:
    """When a file of lines is full, and how many full ones are kept."""

    max_bytes: int = setting(20 * MEGABYTE, whole(at_least=1_000, of=" of bytes"), "Size at which a new file is begun.")
    keep: int = setting(14, COUNT, "Full files that are kept.")


@section
class Log:
    """The log."""

    level: LogLevel = setting(
        "INFO", choice(LogLevel), "The least that is logged; of other libraries at least `WARNING`."
    )
    format: LogFormat = setting(
        "auto",
        choice(LogFormat),
        "Form of a line on the error stream; `auto` is text on a terminal and JSON elsewhere.",
    )
    file: Path | None = setting(None, PATH, "File that gets every line as JSON, beside the error stream.")
    rotation: Rotation = Rotation()


@section
class Audit:
    """The audit trail."""

    enabled: bool = setting(True, FLAG, "Record every call.")
    directory: Path | None = setting(
        None, PATH, "Directory of the audit files, one per category of calls.", under_home="audit"
    )
    required: bool = setting(False, FLAG, "Fail a call that cannot be recorded.")
    fsync: bool = setting(False, FLAG, "Wait until each record is on disk.")
    rotation: Rotation = Rotation()


@section
class MetricsOutput:
    """Metrics."""

    enabled: bool = setting(True, FLAG, "Count and time what the server does.")
    strict: bool = setting(False, FLAG, "Fail on a tag that a metric does not declare, rather than drop it.")


@section
class Traces:
    """Traces."""

    enabled: bool = setting(
        False, FLAG, "Trace calls: put trace ids into logs, and send spans to `telemetry.otlp.endpoint`."
    )
    sample_ratio: float = setting(
        1.0, number(at_most=1), "Share of calls that are traced when the caller did not decide it."
    )


@section
class Otlp:
    """The receiver of metrics and traces."""

    endpoint: str | None = setting(
        None, WEB_URL, "Base of the OTLP/HTTP receiver, such as `http://127.0.0.1:4318`; unless set, nothing is sent."
    )
    headers: Secret | None = setting(None, SECRET, "Headers for the receiver, as `name=value,name=value`.")
    timeout_seconds: float = setting(10.0, number(at_least=0.001, of=" of seconds"), "How long a delivery may take.")
    metrics_every: timedelta = setting(timedelta(seconds=60), DURATION, "Time between two deliveries of metrics.")


@section
class Telemetry:
    """Metrics and traces."""

    service_name: str = setting("skiway", TEXT, "Name of this server in metrics and traces.")
    metrics: MetricsOutput = MetricsOutput()
    traces: Traces = Traces()
    otlp: Otlp = Otlp()
