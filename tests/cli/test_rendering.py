"""Output for people and for programs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import typer
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.cli import rendering
from skiway.cli.command import Call
from skiway.cli.lake.jobs import describe_progress, report_end
from skiway.client.metastore import Job
from skiway.foundation.causes import suggestion
from skiway.model import v1


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Fact:
    job_id: str = "0123456789" * 3
    state: str = "running"
    name: str = "a name that is long, and then some more of it"
    rows: int = 1234567
    size_bytes: int = 5 * 1024 * 1024
    at: datetime = datetime(2025, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


COLUMNS = ["job_id", "state", "rows", "name", "size_bytes", "at"]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(width: int) -> list[str]:
        stream = Terminal()
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        rendering.write_rows([Fact(), Fact(name="b")], COLUMNS, empty="")
        return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()

    return write


@pytest.mark.parametrize(("width", "parts"), [(40, 3), (60, 2), (80, 2), (100, 2), (120, 1)])
def test_rows_fit_the_terminal_and_ids_are_not_shortened(screen: Any, width: int, parts: int) -> None:
    lines = screen(width)
    assert len(lines) == 3 * parts
    assert max(map(len, lines)) <= width
    assert all(Fact.job_id in line for line in lines[parts::parts])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_narrow_terminal_shows_all_columns_on_several_lines(screen: Any, width: int) -> None:
    lines = screen(width)
    parts = len(lines) // 3
    titles, first = " ".join(lines[:parts]), " ".join(lines[parts : 2 * parts])
    assert titles.split() == ["job", "id", "state", "rows", "name", "size", "at"]
    assert all(part in first for part in ("running", "1,234,567", "a name that is", "5.0 MiB", "2025-01-02 03:04:05"))
    assert all(line.startswith("    ") for number, line in enumerate(lines) if number % parts)


def test_wide_terminal_shows_whole_texts_on_one_line(screen: Any) -> None:
    wide = screen(200)
    assert wide[0].split() == ["job", "id", "state", "rows", "name", "size", "at"]
    assert "and then some more of it" in wide[1]


def test_pipe_gets_complete_lines_without_colors_or_trailing_spaces(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rendering.write_rows([Fact(), Fact(name="b")], COLUMNS, empty="")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == lines
    assert Fact.name in lines[1]
    assert lines[1].endswith("5.0 MiB  2025-01-02 03:04:05")
    assert not any("\x1b" in line for line in lines)


def test_values_are_formatted_for_people() -> None:
    shown = rendering.format_value
    assert [shown(None), shown(True), shown(1234), shown(7, "snapshot_id")] == ["-", "yes", "1,234", "7"]
    assert [shown(1023, "size_bytes"), shown(1536, "size_bytes")] == ["1023 B", "1.5 KiB"]
    assert shown(timedelta(seconds=3.25)) == "3.2 s"
    assert shown({"a": 1, "b": None}) == "a=1, b=-"
    assert shown("two\n lines") == "two lines"


def test_values_are_formatted_for_programs() -> None:
    value = {
        "when": datetime(2025, 1, 2, tzinfo=UTC),
        "local": datetime(2025, 1, 2, 3),
        "day": date(2025, 1, 2),
        "took": timedelta(seconds=1.5),
        "money": Decimal("1.10"),
        "id": UUID(int=1),
        "raw": b"\x00\xff",
        "odd": [float("nan"), float("inf"), 1.5, None],
        "fact": Fact(),
    }
    document = json.loads(rendering.json_text(value))
    assert document["when"] == "2025-01-02T00:00:00Z"
    assert document["local"] == "2025-01-02T03:00:00"
    assert (document["day"], document["took"], document["money"], document["raw"]) == (
        "2025-01-02",
        1.5,
        "1.10",
        "00ff",
    )
    assert document["odd"] == ["nan", "inf", 1.5, None]
    assert document["fact"]["size_bytes"] == 5 * 1024 * 1024


def test_suggestions_are_similar_names_or_else_the_first_ones() -> None:
    assert suggestion("peple", ["orders", "people"]) == "did you mean people?"
    assert suggestion("people", ["peoples", "peeople", "orders"]) == "did you mean peoples or peeople?"
    assert suggestion("ab", ["abc", "abd", "abe"]) == "did you mean abe, abd or abc?"
    assert suggestion("PEOPLE", ["people"]) == "did you mean people?"
    assert suggestion("zzz", ["a", "b"]) == "existing: a, b"
    assert suggestion("zzz", ["a", "b", "c", "d"]) == "existing: a, b, c, …"
    assert suggestion("zzz", []) == ""


def progress(mode: v1.CaptureMode.ValueType, **counts: int) -> v1.JobProgress:
    progress_ = v1.JobProgress(**counts)
    setattr(progress_, "pass", mode)
    return progress_


@pytest.mark.parametrize(
    ("state", "job_progress", "shown"),
    [
        (v1.JS_QUEUED, None, "queued, waiting for a worker"),
        (v1.JS_PARTIAL, progress(v1.CAP_METADATA_ONLY_CORE, tables_total=3), "partial"),
        (v1.JS_RUNNING, None, "running"),
        (
            v1.JS_RUNNING,
            progress(v1.CAP_METADATA_ONLY_CORE, tables_total=3, tables_done=1),
            "metadata, 1 of 3 tables, about 2 min left",
        ),
        (
            v1.JS_RUNNING,
            progress(v1.CAP_STATS_ONLY_ASYNC, tables_total=1, files_total=7, files_done=2),
            "statistics, 0 of 1 table, 2 of 7 files, about 2 min left",
        ),
        (
            v1.JS_RUNNING,
            progress(
                v1.CAP_STATS_ONLY_ASYNC,
                tables_total=1,
                files_total=7,
                files_done=2,
                rows_total=7000,
                rows_done=2000,
                bytes_total=8 << 20,
                bytes_done=1 << 20,
            ),
            "statistics, 0 of 1 table, 2 of 7 files, 2,000 of 7,000 rows, 1.0 MiB of 8.0 MiB, about 6 min left",
        ),
        (v1.JS_FAILED, progress(v1.CAP_METADATA_ONLY_CORE, tables_total=3), "failed"),
        (
            v1.JS_RUNNING,
            progress(v1.CAP_UNSPECIFIED, tables_total=3, tables_done=1),
            "running, 1 of 3 tables, about 2 min left",
        ),
    ],
)
def test_progress_of_a_job_shows_phase_and_counts(
    state: v1.JobState.ValueType, job_progress: v1.JobProgress | None, shown: str
) -> None:
    job = v1.Job(
        state=state, progress=job_progress, started_at=Timestamp(seconds=60), updated_at=Timestamp(seconds=110)
    )
    assert describe_progress(Job(job)) == shown


def test_progress_of_a_pipeline_has_a_phase() -> None:
    job = v1.Job(state=v1.JS_RUNNING, pipeline=v1.PipelineTask(), progress=v1.JobProgress(tables_total=2))
    assert describe_progress(Job(job)) == "pipeline, 0 of 2 tables"


@pytest.mark.parametrize(
    ("state", "failed", "code"), [("succeeded", 0, 0), ("partial", 1, 3), ("failed", 0, 1), ("cancelled", 0, 1)]
)
def test_exit_code_is_0_only_if_all_tables_succeeded(
    capsys: pytest.CaptureFixture[str], state: str, failed: int, code: int
) -> None:
    errors = {f"t{number}": "broken" for number in range(failed)}
    job = v1.Job(job_id="j", tables_scanned=2, errors=failed, state=v1.JobState.Value(f"JS_{state.upper()}"))
    job.table_errors.extend(v1.TableError(table=table, message=message) for table, message in errors.items())
    ended = 0
    try:
        report_end(Call(), Job(job), {})
    except typer.Exit as exit_:
        ended = exit_.exit_code
    captured = capsys.readouterr()
    assert ended == code
    shown = "succeeded only in part" if state == "partial" else state
    assert captured.out == f"job j {shown}: 2 tables, 0 changed, {failed} failed\n"
    assert captured.err == ("  t0: broken\n" if failed else "")
