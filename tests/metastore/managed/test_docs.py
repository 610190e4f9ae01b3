"""The page about managed tables matches the code."""

from __future__ import annotations

import inspect
from pathlib import Path

from skiway.formats.iceberg.writing import data_files
from skiway.metastore.gc import warehouse
from skiway.metastore.managed.commits import ATTEMPTS

PAGE = " ".join((Path(__file__).parents[3] / "docs" / "managed-tables.md").read_text().split())


def test_numbers_on_the_page_match_the_code() -> None:
    limits = inspect.signature(data_files.DataFileWriter).parameters
    for phrase in (
        f"up to {ATTEMPTS} times",
        f"about {limits['buffer_bytes'].default >> 20} MiB",
        f"{limits['max_open_files'].default} files open",
        f"`write.target-file-size-bytes` ({data_files._TARGET_BYTES >> 20} MiB)",
        f"({data_files._ROW_GROUP_BYTES >> 20} MiB)",
    ):
        assert phrase in PAGE, phrase
    assert warehouse.THREE_DAYS_S == 3 * 86400
