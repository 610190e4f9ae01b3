"""Whether a table may have had another snapshot when a transaction began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from skiway.lake.reading.table import LakeTable
from skiway.metastore.records.realm import timestamp
from skiway.model import v1

MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)


class Known(LakeTable):
    """A table of which only the record is known."""

    def __init__(self, created: datetime, updated: datetime, *, is_managed: bool) -> None:
        self.record = v1.Table(
            created_at=timestamp(created), updated_at=timestamp(updated), metadata_location="m" if is_managed else ""
        )


@pytest.mark.parametrize(
    ("created", "updated", "managed", "mirrored"),
    [
        (-DAY, -DAY, False, True),
        (-DAY, -MINUTE - SECOND, False, True),
        (-DAY, -MINUTE, True, True),
        (-DAY, timedelta(), True, True),
        (-DAY, SECOND, True, True),
        (timedelta(), SECOND, True, True),
        (SECOND, DAY, False, False),
    ],
)
def test_managed_tables_that_were_changed_before_need_no_lookup(
    created: timedelta, updated: timedelta, managed: bool, mirrored: bool
) -> None:
    for is_managed, expected in ((True, managed), (False, mirrored)):
        table = Known(MOMENT + created, MOMENT + updated, is_managed=is_managed)
        assert table._may_have_changed(MOMENT) == expected
