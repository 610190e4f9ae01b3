"""The built-in masks of policies, evaluated by DuckDB: `partial` and `hash`, for every type."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from skiway.airport import ScanOptions
from skiway.client import col
from skiway.client.airport.filters import filter_json
from skiway.client.airport.predicates import Predicate
from skiway.errors import Cancelled, Conflict, InvalidArgument, NotFound, PermissionDenied, SkiwayError, TimedOut
from skiway.lake.policies import RestrictedRows, _finds_nothing, may_be_shown, pruning_filter
from skiway.lake.reading.scans import ScannedTable
from skiway.metastore.records.policies import Restriction
from skiway.model import v1
from skiway.sql import Query


def rows(account: str = "a", key: bytes = b"k" * 64) -> RestrictedRows:
    callers = SimpleNamespace(principal=SimpleNamespace(account_id=account))
    context = cast(Any, SimpleNamespace(key=key, callers=callers))
    nothing = cast(Any, None)
    return RestrictedRows(context, cast(Restriction, nothing), nothing, ("c", "s", "t"), pa.schema([]))


def masked(mask: int, kind: str, *values: Any, of: RestrictedRows | None = None) -> list[Any]:
    expression = (of or rows())._built_in(mask, '"x y"', kind)
    with duckdb.connect() as db:
        query = f'SELECT CAST({expression} AS {kind}) FROM (SELECT unnest(?::{kind}[]) AS "x y")'
        return [found for (found,) in db.execute(query, [list(values)]).fetchall()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a", "*"),
        ("1234567", "*******"),
        ("12345678", "****5678"),
        ("1234567890", "******7890"),
        ("öäüßöäüß", "****öäüß"),
        (None, None),
    ],
)
def test_partial_shows_the_last_four_characters_of_eight_or_more(text: str | None, shown: str | None) -> None:
    assert masked(v1.MK_PARTIAL, "VARCHAR", text) == [shown]


def digest(value: str, of: RestrictedRows | None = None) -> str:
    return hashlib.sha256(((of or rows())._key + value).encode()).hexdigest()


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("TINYINT", 2**7 - 1),
        ("SMALLINT", 2**15 - 1),
        ("INTEGER", 2**31 - 1),
        ("BIGINT", 2**63 - 1),
        ("UTINYINT", 2**8 - 1),
        ("USMALLINT", 2**16 - 1),
        ("UINTEGER", 2**32 - 1),
        ("UBIGINT", 2**63 - 1),
    ],
)
def test_hash_of_a_number_is_a_number_of_the_same_type(kind: str, limit: int) -> None:
    values = list(range(100))
    assert masked(v1.MK_HASH, kind, *values, None) == [
        *(int(digest(str(each))[:15], 16) % limit for each in values),
        None,
    ]


def test_hash_of_texts_bytes_and_uuids() -> None:
    number = uuid.UUID(int=7)
    assert masked(v1.MK_HASH, "VARCHAR", "a", None) == [digest("a"), None]
    assert masked(v1.MK_HASH, "BLOB", b"\x01\xff") == [bytes.fromhex(digest("01FF"))]
    assert masked(v1.MK_HASH, "UUID", number) == [uuid.UUID(digest(str(number))[:32])]


def test_hashes_depend_on_the_account_and_on_the_key_of_the_server() -> None:
    keys = [rows(), rows(account="b"), rows(key=b"l" * 64)]
    assert len({masked(v1.MK_HASH, "VARCHAR", "a", of=each)[0] for each in keys}) == 3
    assert masked(v1.MK_HASH, "VARCHAR", "a", of=rows(key=b"k" * 64 + b"more")) == [digest("a")]
    assert len(rows()._key) == 32


@pytest.mark.parametrize(
    ("mask", "kind", "value"),
    [
        (v1.MK_HASH, "DOUBLE", 1.5),
        (v1.MK_PARTIAL, "INTEGER", 5),
        (v1.MK_PARTIAL, "BLOB", b"12345678"),
        (v1.MK_NULL, "VARCHAR", "12345678"),
    ],
)
def test_masks_that_do_not_support_a_type_hide_the_value(mask: int, kind: str, value: Any) -> None:
    assert masked(mask, kind, value) == [None]
    assert _finds_nothing("c", "s", "t") is None  # type: ignore[func-returns-value]


# -- the query that applies policies -------------------------------------------------------------------------------------


def test_condition_of_the_caller_is_not_part_of_the_query() -> None:
    """It is applied to the rows that the query returns, so it never meets a hidden row."""
    asked: list[str] = []

    def answer(query: Query) -> Iterator[pa.RecordBatch]:
        asked.append(query.sql)
        yield pa.record_batch({"id": pa.array([1, 2, 3])})

    schema = pa.schema({"id": pa.int64()})
    queries = SimpleNamespace(expressions=lambda *_, **__: [], rows=answer)
    callers = SimpleNamespace(principal=SimpleNamespace(account_id="a"), claims={})
    context = cast(Any, SimpleNamespace(queries=queries, callers=callers))
    base = ScannedTable("t", schema, lambda _: iter(()))
    policed = RestrictedRows(context, Restriction("table t", (), ()), base, ("c", "s", "t"), schema)
    condition = filter_json(col("id") == 3, ["id"], {"id": schema.field("id")})
    for options in (ScanOptions(), ScanOptions(json_filters=condition)):
        found = [row["id"] for batch in policed.rows(options) for row in batch.to_pylist()]
        assert found == ([3] if options.filter else [1, 2, 3])
    assert asked == ['SELECT "id" FROM (SELECT * FROM "c"."s"."t" WHERE TRUE) AS visible'] * 2


# -- what may be known about hidden rows -----------------------------------------------------------------------------------

FIELDS = {"id": pa.field("id", pa.int64()), "email": pa.field("email", pa.string())}
ON_ID, ON_EMAIL = col("id") == 3, col("email") == "x"


def deciding(where: Predicate, kind: int | None, *, columns: list[str] | None = None, rows: bool = True) -> set[str]:
    """The columns of the conditions that choose files, under a mask of the email, or a filter that hides rows."""
    email = v1.Policy(mask=v1.PolicyMask(kind=cast(Any, kind), columns=["email"]))
    restriction = Restriction("table t", () if rows else (v1.Policy(),), ())
    options = ScanOptions(columns=columns, json_filters=filter_json(where, list(FIELDS), FIELDS))
    return set(pruning_filter(options, restriction, {} if kind is None else {"email": email}).columns)


def test_conditions_over_visible_values_choose_files() -> None:
    assert deciding(ON_ID & ON_EMAIL, None) == {"id", "email"}
    assert deciding(ON_ID & ON_EMAIL, v1.MK_NULL) == {"id"}
    assert deciding(ON_ID | ON_EMAIL, v1.MK_NULL) == set()
    assert deciding(ON_ID, None, rows=False) == set()


def test_no_condition_chooses_files_if_a_mask_that_is_read_may_fail() -> None:
    assert deciding(ON_ID, v1.MK_EXPRESSION, columns=["id"]) == {"id"}
    assert deciding(ON_ID, v1.MK_EXPRESSION, columns=["email"]) == set()
    assert deciding(ON_ID, v1.MK_EXPRESSION) == set()
    assert deciding(ON_ID & ON_EMAIL, v1.MK_EXPRESSION, columns=["id"]) == set()


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [
        (PermissionDenied("x"), True),
        (Cancelled("x"), True),
        (NotFound("x", key="table"), True),
        (NotFound("x", key="table.snapshot"), False),
        (TimedOut("x", key="query.timeout"), True),
        (Conflict("x", key="table.changed"), True),
        (InvalidArgument("x", key="sql.too_large"), True),
        (InvalidArgument("x", key="sql.invalid"), False),
        (InvalidArgument("x", key="file.invalid"), False),
        (InvalidArgument("x"), False),
    ],
)
def test_errors_about_the_call_are_shown_and_those_about_values_and_files_are_not(
    error: SkiwayError, is_shown: bool
) -> None:
    assert may_be_shown(error) == is_shown
