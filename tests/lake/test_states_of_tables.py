"""Whether a table may have had another snapshot when a transaction began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from skiway.lake.reading.state import TableInCall
from skiway.metastore.records.realm import timestamp
from skiway.model import v1

MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)


def known(created: datetime, updated: datetime, *, is_managed: bool) -> TableInCall:
    """A table of which only the record is known."""
    record = v1.Table(
        created_at=timestamp(created), updated_at=timestamp(updated), metadata_location="m" if is_managed else ""
    )
    return TableInCall(cast(Any, None), record, catalog="c", schema_name="s")


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
        table = known(MOMENT + created, MOMENT + updated, is_managed=is_managed)
        assert table._may_have_changed(MOMENT) == expected
