"""Tokens of staged tables are valid for the caller that staged the table, for a limited time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from skiway.errors import PermissionDenied
from skiway.metastore import Realm
from skiway.storage import Stores, open_stores
from skiway.vending import StagedTable, StagedTables

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = StagedTable("a1", "ada", "n1", "t1", "s3://lake/tables/a1/t1")


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as stores:
        yield stores


def tokens(*, key: bytes = b"k" * 32, later: timedelta = timedelta()) -> StagedTables:
    return StagedTables(key, clock=lambda: NOW + later)


def test_caller_reads_its_own_token(stores: Stores) -> None:
    found = tokens(later=timedelta(hours=11, minutes=59)).read(tokens().token(TABLE), Realm(stores, "a1", caller="ada"))
    assert (found.namespace_id, found.table_id, found.folder) == ("n1", "t1", TABLE.folder)


@pytest.mark.parametrize(("account", "caller"), [("a1", "grace"), ("a2", "ada"), ("", "ada"), ("a1", "")])
def test_others_cannot_use_a_token(stores: Stores, account: str, caller: str) -> None:
    with pytest.raises(PermissionDenied, match="stage the table again"):
        tokens().read(tokens().token(TABLE), Realm(stores, account, caller=caller))


def test_expired_changed_and_foreign_tokens_are_refused(stores: Stores) -> None:
    own, token = Realm(stores, "a1", caller="ada"), tokens().token(TABLE)
    for reader, given in (
        (tokens(later=timedelta(hours=12)), token),
        (tokens(key=b"o" * 32), token),
        (tokens(), token[:-2]),
        (tokens(), f"x{token}"),
        (tokens(), ""),
    ):
        with pytest.raises(PermissionDenied, match="stage the table again"):
            reader.read(given, own)
