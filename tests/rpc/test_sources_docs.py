"""The page about connecting a source says what is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rpc.rpc_server import RpcServer
from skiway.client import Metastore
from skiway.formats.web_access import ANSWER_S, CONNECT_S, Addresses
from skiway.metastore import statistics
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.reconcile.reconciler import MOST_LANES, Reconciler
from skiway.metastore.reconcile.upstream import PATIENCE_S
from skiway.model import v1
from skiway.pipeline.worker import HEARTBEATS_PER_LEASE, Worker, jobs_of
from skiway.security import MemorySecrets

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sources.md").read_text()
((CODE, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def at_work(rpc_server: RpcServer) -> Iterator[RpcServer]:
    """A house whose jobs are done, without Spark."""
    rpc_server.factory.catalog()

    def profile(realm, table_id, snapshot, *, handle, **_) -> None:
        stats = v1.TableStats(row_count=1)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))

    run = jobs_of(rpc_server.factory.realm, Reconciler(MemorySecrets(), profile))
    with Worker(JobQueue(rpc_server.factory.stores), run, name="w", poll_s=0.05):
        yield rpc_server


def test_the_program_on_the_page_prints_what_it_shows(at_work: RpcServer, tmp_path, capsys):
    program = CODE.replace("127.0.0.1:50051", at_work.address).replace('token="..."', 'token="everybody"')
    exec(program, {"data": str(tmp_path)})
    assert capsys.readouterr().out == PRINTED


def test_the_shorter_examples_run_too(at_work: RpcServer, tmp_path, capsys):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "people.parquet")
    (policy,) = re.findall(r"```python\n(policy = .*?)```", PAGE, re.DOTALL)
    (watching,) = re.findall(r"```python\n(for job in .*?)```", (DOCS / "jobs.md").read_text(), re.DOTALL)
    with Metastore(at_work.address, token="everybody") as lake:
        lake.connectors.create("files", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="raw")
        exec(watching, {"lake": lake})
        assert capsys.readouterr().out.splitlines()[-1] == "succeeded statistics 1/1 [] 0/0"
        exec(policy, {"lake": lake, "v1": v1})
        stored = lake.connectors.get("files").message.policy
        assert (stored.enabled, stored.max_parallel, stored.interval.seconds) == (True, 4, 3600)


def test_the_page_says_how_long_and_which(rpc_server: RpcServer):
    said = " ".join(PAGE.split())
    assert f"after {PATIENCE_S:g} s at the latest" in said
    assert f"never more than {MOST_LANES}" in said
    assert f"time out after {CONNECT_S:g} s to connect and {ANSWER_S:g} s for each response" in said
    for level in Addresses:
        assert f"| `{level}`" in PAGE
    assert HEARTBEATS_PER_LEASE == 3
    assert "renewed three times" in said
    for name in v1.PredicateOp.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
        assert f"`{name}`" in PAGE
