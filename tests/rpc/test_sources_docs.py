"""The page about connecting a source matches the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rpc.rpc_server import RpcServer
from skiway.client import Metastore
from skiway.metastore import statistics
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.reconcile.reconciler import MOST_LANES, Reconciler
from skiway.metastore.reconcile.upstream import PATIENCE_S
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.spark_jobs.worker import Worker, jobs_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sources.md").read_text()
((CODE, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def server_with_worker(rpc_server: RpcServer) -> Iterator[RpcServer]:
    """A server with a worker that runs jobs without Spark."""
    rpc_server.factory.catalog()

    def profile(realm, table_id, snapshot, *, handle, **_) -> None:
        stats = v1.TableStats(row_count=1)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))

    run = jobs_of(rpc_server.factory.realm, Reconciler(MemorySecrets(), profile))
    with Worker(JobQueue(rpc_server.factory.stores), run, name="w", poll_s=0.05):
        yield rpc_server


def test_program_on_the_page_prints_the_shown_output(server_with_worker: RpcServer, tmp_path, capsys):
    program = CODE.replace("127.0.0.1:50051", server_with_worker.address).replace('token="..."', 'token="everybody"')
    exec(program, {"data": str(tmp_path)})
    assert capsys.readouterr().out == PRINTED


def test_shorter_examples_run(server_with_worker: RpcServer, tmp_path, capsys):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "people.parquet")
    (policy,) = re.findall(r"```python\n(policy = .*?)```", PAGE, re.DOTALL)
    (watching,) = re.findall(r"```python\n(for job in .*?)```", (DOCS / "jobs.md").read_text(), re.DOTALL)
    with Metastore(server_with_worker.address, token="everybody") as lake:
        lake.connectors.create("files", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="raw")
        exec(watching, {"lake": lake})
        assert capsys.readouterr().out.splitlines()[-1] == "succeeded statistics 1/1 () 0/0"
        exec(policy, {"lake": lake, "v1": v1})
        stored = lake.connectors.get("files").message.policy
        assert (stored.enabled, stored.max_parallel, stored.interval.seconds) == (True, 4, 3600)


def test_limits_and_names_on_the_page_match_the_code(rpc_server: RpcServer):
    page = " ".join(PAGE.split())
    assert f"after {PATIENCE_S:g} s at the latest" in page
    assert f"never more than {MOST_LANES}" in page
    for name in v1.PredicateOp.keys():  # noqa: SIM118 - a protobuf enum is not a mapping
        assert f"`{name}`" in PAGE
