"""The pipeline of the demo, on a server that runs none."""

from __future__ import annotations

from pathlib import Path

from runtime.servers import started
from skiway.client import Metastore
from skiway.demo import build
from skiway.metastore.pipelines.projects import read_folder, read_project


def test_demo_goes_on_if_pipelines_do_not_run(tmp_path: Path) -> None:
    with started(tmp_path / "home") as server, Metastore(server.address) as lake:
        for _ in range(2):  # a demo that was interrupted tries again
            said = build.derive(lake, timeout_s=60)
            assert said.startswith("not derived: this worker runs no pipelines: "), said


def test_edited_files_of_the_pipeline_stay(tmp_path: Path) -> None:
    build.write_pipeline(tmp_path / "reports")
    assert read_folder(tmp_path / "reports") == build.PIPELINE_FILES
    tables = read_project(build.PIPELINE_FILES).tables
    assert {table.name.name for table in tables.values()} == set(build.DERIVED)
    (tmp_path / "reports" / "best_days.sql").write_text("SELECT 1 AS x")
    build.write_pipeline(tmp_path / "reports")
    assert (tmp_path / "reports" / "best_days.sql").read_text() == "SELECT 1 AS x"
