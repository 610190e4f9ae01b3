"""The page about connecting a source says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from rpc.house import House
from skiway.metastore import statistics
from skiway.metastore.job_queue import JobQueue
from skiway.metastore.reconcile import Reconciler
from skiway.metastore.reconcile_validation import PATIENCE_S
from skiway.model import v1
from skiway.pipeline.capture import jobs_of
from skiway.pipeline.worker import BEATS, Worker
from skiway.security import MemorySecrets

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
((CODE, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_on_the_page_prints_what_it_shows(house: House, tmp_path, capsys):
    house.world.catalog()

    def profile(realm, table_id, snapshot, *, handle, cancelled) -> None:
        stats = v1.TableStats(row_count=1)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))

    run = jobs_of(house.world.realm, Reconciler(MemorySecrets(), profile))
    with Worker(JobQueue(house.world.stores), run, name="w", poll_s=0.05):
        program = CODE.replace("127.0.0.1:50051", house.address).replace('token="..."', 'token="everybody"')
        exec(program, {"data": str(tmp_path)})
    assert capsys.readouterr().out == PRINTED


def test_the_page_says_how_long_and_which(house: House):
    said = " ".join(PAGE.split())
    assert f"after {PATIENCE_S:g} s at the latest" in said
    assert BEATS == 3
    assert "renewed three times" in said
    for name in v1.PredicateOp.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
        assert f"`{name}`" in PAGE
