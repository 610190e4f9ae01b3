"""The rights of the owners of pipelines when their roles or tokens change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from metastore.pipelines.pipeline_lake import DuckQueries, PipelineLake
from skiway.config import Settings, load
from skiway.errors import PreconditionFailed
from skiway.metastore import jobs
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.inputs import PipelineArea, owner_realm
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.runtime.authentication import current_roles
from skiway.security import MemorySecrets, TokenEntry, new_token, roles_of_user
from skiway.spark_jobs.worker import Worker, jobs_of

FILES = {
    "pipeline.yml": "name: sales\ncatalog: lake\nnamespace: sales\n",
    "big.sql": "SELECT id, price FROM orders WHERE price > 2",
}


def settings(tokens: Path) -> Settings:
    return load(environ={}, flags={"auth.mode": "token", "auth.tokens.file": str(tokens)})


def write(tokens: Path, *entries: TokenEntry) -> None:
    tokens.write_text("\n".join(each.toml() for each in entries))


def entry(account: str, *roles: str, name: str = "ann") -> TokenEntry:
    return new_token(name, account, roles=roles).entry


@pytest.fixture
def pipeline(lake: PipelineLake) -> v1.Pipeline:
    """A pipeline that ann declared as an administrator."""
    lake.append(lake.create(), (1, "eu", 3), (2, "us", 1))
    ann = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    return api.CALLS.create(ann, v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=FILES))).pipeline


def ended(lake: PipelineLake, pipeline: v1.Pipeline, tokens: Path) -> v1.Job:
    """The job of a run by a worker that has this tokens file."""
    factory = lake.lake.factory
    reconciler = Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse)
    started = api.start(lake.lake.home, v1.StartPipelineRequest(pipeline_id=pipeline.resource_id)).job
    run = jobs_of(factory.realm, reconciler, DuckQueries(), current_roles=current_roles(settings(tokens)))
    assert Worker(JobQueue(factory.stores, clock=factory.clock), run, name="w").work_once()
    return jobs.get(lake.lake.home, v1.GetReconcileJobRequest(job_id=started.job_id)).job


def test_runs_have_the_current_roles_of_the_owner(lake: PipelineLake, pipeline: v1.Pipeline, tmp_path: Path) -> None:
    tokens, account = tmp_path / "tokens.toml", lake.lake.home.account_id
    write(tokens, entry(account, "default"))
    refused = ended(lake, pipeline, tokens)
    assert refused.state == v1.JS_FAILED
    assert "table.write" in refused.table_errors[0].message
    write(tokens, entry(account, "default"), entry(account, "Administrator"), entry(account, name="bob"))
    assert ended(lake, pipeline, tokens).state == v1.JS_SUCCEEDED


def test_a_pipeline_whose_owner_has_no_valid_token_does_not_run(
    lake: PipelineLake, pipeline: v1.Pipeline, tmp_path: Path
) -> None:
    tokens, account = tmp_path / "tokens.toml", lake.lake.home.account_id
    for entries in ([], [entry("other", "administrator")], [entry(account, "administrator", name="anna")]):
        write(tokens, *entries)
        refused = ended(lake, pipeline, tokens)
        assert refused.state == v1.JS_FAILED
        assert "the owner of pipeline sales, ann, has no valid token any more" in refused.message
    write(tokens, entry(account, "administrator"))
    assert ended(lake, pipeline, tokens).state == v1.JS_SUCCEEDED


def test_a_worker_without_the_tokens_file_runs_nothing(
    lake: PipelineLake, pipeline: v1.Pipeline, tmp_path: Path
) -> None:
    refused = ended(lake, pipeline, tmp_path / "missing.toml")
    assert refused.state == v1.JS_FAILED
    assert "cannot be read" in refused.message


def test_a_dry_run_also_needs_a_valid_owner(lake: PipelineLake, pipeline: v1.Pipeline) -> None:
    area = PipelineArea(Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse), lambda *_: None)
    with pytest.raises(PreconditionFailed, match="has no valid token any more"):
        api.plan(lake.lake.home, v1.PlanPipelineRequest(pipeline_id=pipeline.resource_id), area=area)


def test_other_modes_do_not_know_current_roles(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.toml")
    assert current_roles(load(environ={}, flags={"auth.mode": "dev", "auth.tokens.file": file})) is None


def test_roles_of_a_user_are_those_of_all_valid_tokens() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    over = new_token("ann", "a1", roles=["administrator"], expires_at=now).entry
    found = [
        over,
        entry("a1", "Default"),
        entry("a1", "member"),
        entry("a2", "developer"),
        entry("a1", "x", name="bob"),
    ]
    assert roles_of_user(found, "a1", "ann", clock=lambda: now) == {"default", "member"}
    assert roles_of_user(found, "a3", "ann") is None
    assert roles_of_user([over], "a1", "ann", clock=lambda: now) is None
    assert roles_of_user([entry("a1")], "a1", "ann") == frozenset()
