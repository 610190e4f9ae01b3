"""The attributes of connectors, jobs, queries and statistics."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore import Connector, Job, TableStats
from skiway.client.metastore.transactions import Query
from skiway.model import v1

FIRST, THEN = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)


def stamp(moment: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def test_connector_has_times_and_a_description() -> None:
    bare = Connector(v1.Connector(created_at=stamp(FIRST), updated_at=stamp(THEN)))
    assert (bare.description, bare.created_at, bare.updated_at) == (None, FIRST, THEN)
    assert Connector(v1.Connector(description="ours")).description == "ours"


def test_job_has_start_and_end_times_once_set() -> None:
    waiting = Job(v1.Job(created_at=stamp(FIRST), state=v1.JS_QUEUED))
    assert (waiting.started_at, waiting.finished_at, waiting.is_over) == (None, None, False)
    over = Job(v1.Job(started_at=stamp(FIRST), finished_at=stamp(THEN), state=v1.JS_FAILED))
    assert (over.started_at, over.finished_at, over.is_over) == (FIRST, THEN, True)


def test_query_has_a_state() -> None:
    message = v1.QueryDescriptor(state=v1.LS_ENDED_ABORT, created_at=stamp(FIRST), expires_at=stamp(THEN))
    query = Query(message, None)  # type: ignore[arg-type]  # it makes no call
    assert (query.state, query.created_at, query.expires_at) == ("ended_abort", FIRST, THEN)


def test_statistics_have_a_storage_time() -> None:
    assert TableStats(v1.TableStats(updated_at=stamp(THEN))).updated_at == THEN
    assert TableStats(None).updated_at is None
