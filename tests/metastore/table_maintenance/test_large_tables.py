"""Which tables are optimized on Spark, and which in the process of the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.table_maintenance.maintained_tables import MaintainedTable
from skiway.errors import Unsupported
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.table_maintenance.optimizing import OptimizeReport
from skiway.metastore.table_maintenance.tasks import run_task
from skiway.model import v1
from skiway.security import LeasedJob


@dataclass
class Elsewhere:
    """Records what it should optimize."""

    from_bytes: int | None = None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def optimize(self, _table: Any, name: Sequence[str], _rules: Any, *, job: LeasedJob, **_: Any) -> OptimizeReport:
        self.asked.append((job.id, *name))
        return OptimizeReport(files_before=7, files_after=1, commits=1)


@pytest.fixture
def table(factory: ResourceFactory, tmp_path: Path) -> MaintainedTable:
    made = MaintainedTable.create(ManagedTableFactory.at(factory, tmp_path))
    made.fill(5)
    return made


def run(
    table: MaintainedTable, large: Elsewhere | None, engine: v1.OptimizeEngine.ValueType = v1.OE_UNSPECIFIED
) -> str:
    task = v1.MaintenanceTask(optimize=v1.OptimizeTask(engine=engine))
    home = table.home
    job = LeasedJob(home.home.account_id, "j", 1)
    return run_task(home.home, home.warehouse, table.id, task, Control(), job=job, large=large).note


def test_table_is_optimized_elsewhere_on_request(table: MaintainedTable) -> None:
    large = Elsewhere()
    assert run(table, large, v1.OE_SPARK).startswith("rewrote 7 files as 1")
    catalog = table.home.factory.first_catalog().display_name
    namespace = table.home.factory.first_namespace().display_name
    assert large.asked == [("j", catalog, namespace, "people")]
    assert len(table.paths()) == 5


def test_size_decides_without_a_request(table: MaintainedTable) -> None:
    size = sum(Path(path.removeprefix("file://")).stat().st_size for path in table.paths())
    at_limit, above = Elsewhere(size), Elsewhere(size + 1)
    run(table, at_limit)
    assert (len(at_limit.asked), len(table.paths())) == (1, 5)
    run(table, above)
    assert (above.asked, len(table.paths())) == ([], 1)


@pytest.mark.parametrize(
    ("large", "engine"),
    [(None, v1.OE_UNSPECIFIED), (Elsewhere(), v1.OE_UNSPECIFIED), (Elsewhere(1), v1.OE_PROCESS), (None, v1.OE_PROCESS)],
)
def test_other_tables_are_optimized_here(
    table: MaintainedTable, large: Elsewhere | None, engine: v1.OptimizeEngine.ValueType
) -> None:
    run(table, large, engine)
    assert len(table.paths()) == 1
    assert large is None or large.asked == []


def test_worker_without_spark_refuses_the_request(table: MaintainedTable) -> None:
    with pytest.raises(Unsupported, match=r"cannot optimize tables on Spark.*use the engine process"):
        run(table, None, v1.OE_SPARK)
