"""Tokens of Python functions of pipelines over Airport: they read the inputs of their function, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import ByToken, Lake, opened_lake
from skiway.client import AirportClient
from skiway.errors import NotFound, SkiwayError, Unauthorized
from skiway.lake.callers import Callers
from skiway.metastore import grants
from skiway.metastore.resources import catalogs, namespaces, policies, tables
from skiway.model import v1
from skiway.request_path import Access
from skiway.security import IssuedTokenAuthenticator, JobTokens, LeasedJob, PermissionAuthorizer, TokenHeaders
from skiway.sql import QueryEngine


class Jobs:
    def __init__(self) -> None:
        self.running = True
        self.tokens = JobTokens(lambda: b"k" * 32, runs=lambda *_: self.running)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def db(tmp_path: Path, queries: QueryEngine, jobs: Jobs) -> Iterator[Lake]:
    """A lake with the tables s.a, s.b and s.c, which accepts tokens of jobs."""
    with opened_lake(tmp_path, queries=queries) as lake:
        lake.authenticator = IssuedTokenAuthenticator(ByToken(), jobs.tokens, TokenHeaders())
        with lake.served() as location:
            lake.location = location
            with lake.client() as client:
                client.create_schema("s")
                for name in "abc":
                    client.create_table_as(f"s.{name}", pa.table({"id": [1]}))
            yield lake


def table(db: Lake, name: str) -> v1.ResourceId:
    (catalog,) = (each for each in catalogs.scan(db.realm) if each.display_name == "managed")
    (space,) = (each for each in namespaces.scan(db.realm, catalog.resource_id.id) if each.display_name == "s")
    (found,) = (each for each in tables.scan(db.realm, space.resource_id.id) if each.display_name == name)
    return found.resource_id


def reader(db: Lake, jobs: Jobs, *names: str) -> AirportClient:
    ids = [table(db, name).id for name in names]
    return db.client(token=jobs.tokens.issue_reader(LeasedJob(db.realm.account_id, "job-1", 1), ids))


def test_it_reads_its_tables_and_sees_no_others(db: Lake, jobs: Jobs) -> None:
    with reader(db, jobs, "a", "b") as client:
        assert client.scan("s.a").read_all().num_rows == client.scan("s.b").read_all().num_rows == 1
        shown = [table.name for schema in client.schemas() if schema.name == "s" for table in schema.tables]
        assert shown == ["a", "b"]
        with pytest.raises(NotFound):
            client.scan("s.c")
        with pytest.raises(SkiwayError):
            client.call("skiway.query", "SELECT * FROM s.c").read_all()
        assert client.call("skiway.query", "SELECT * FROM s.a").read_all().num_rows == 1
    with reader(db, jobs, "c") as client:  # another token of the same job
        assert client.call("skiway.query", "SELECT * FROM s.c").read_all().num_rows == 1
        with pytest.raises(SkiwayError):
            client.call("skiway.query", "SELECT * FROM s.a").read_all()


def test_it_changes_nothing(db: Lake, jobs: Jobs) -> None:
    row = pa.table({"id": [2]})
    with reader(db, jobs, "a") as client:
        for attempt in (
            lambda: client.insert("s.a", row),
            lambda: client.drop_table("s.a"),
            lambda: client.create_table("s.new", row.schema),
            lambda: client.create_schema("new"),
        ):
            with pytest.raises(SkiwayError):
                attempt()
    with db.client() as client:
        assert client.scan("s.a").read_all().num_rows == 1


def test_grants_and_policies_make_no_difference(db: Lake, jobs: Jobs) -> None:
    """Its owner has no policies, which the run has checked; and it is no member of the account."""
    request = v1.AddGrantRequest(object_id=table(db, "c"), grantee="role:member", privilege=v1.PV_MANAGE)
    grants.add(db.realm, request)
    spec = v1.PolicySpec(display_name="none", subjects=["everyone"], objects=[table(db, "a")])
    spec.row_filter.predicate = "id > 100"
    policies.calls(lambda *_: []).create(db.realm, v1.CreatePolicyRequest(spec=spec))
    with reader(db, jobs, "a") as client:
        assert client.scan("s.a").read_all().num_rows == 1
        with pytest.raises(NotFound):
            client.scan("s.c")


def test_it_ends_with_its_job(db: Lake, jobs: Jobs) -> None:
    with reader(db, jobs, "a") as client:
        jobs.running = False
        with pytest.raises(Unauthorized, match="job-1 has ended"):
            client.scan("s.a")


def test_tokens_of_one_job_for_other_tables_have_other_rights(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server remembers for the calls of a scan, it remembers by these rights."""
    callers = Callers(Access(lambda _: pytest.fail("no store is needed"), ByToken(), PermissionAuthorizer()))

    def rights(*tables: str) -> object:
        principal = jobs.tokens.principal(jobs.tokens.issue_reader(LeasedJob("a1", "job-1", 1), tables))
        monkeypatch.setattr(Callers, "principal", principal)
        return callers.rights

    assert rights("t-1") == rights("t-1")
    assert rights("t-1") != rights("t-2")
