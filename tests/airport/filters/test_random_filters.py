"""Random predicates, bound and serialized by DuckDB itself: no encoder loses a row, however deeply they are nested."""

from __future__ import annotations

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings

from airport.filters.predicates import ROWS, Client, conditions
from airport.filters.recorded import Oracle, numbers
from skiway.airport import filters


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(ROWS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ds.Dataset:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(ROWS.drop_columns(["iv", "ts_s"]), path, row_group_size=2)
    return ds.dataset(path)


@given(predicate=conditions())
@settings(max_examples=settings.default.max_examples)
def test_no_encoder_loses_a_row(client: Client, oracle: Oracle, dataset: ds.Dataset, predicate: str) -> None:
    sent = client.sent(predicate)
    assume(sent is not None)
    parsed = filters.parse(sent)
    (expected,) = oracle.kept_by_client([predicate])
    if (where := filters.to_sql(parsed)) is not None:
        assert expected <= oracle.kept(where), where
    if (expression := filters.to_arrow(parsed, ROWS.schema)) is not None:
        assert expected <= numbers(ROWS.filter(expression)), expression
        assert expected <= numbers(dataset.to_table(columns=["rowid"], filter=expression)), expression


@pytest.mark.parametrize(
    ("predicate", "value"),
    [
        ("un = '123e4567-e89b-12d3-a456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"),
        ("hu < -170141183460469231731687303715884105727", -170141183460469231731687303715884105727),
        ("uh > 340282366920938463463374607431768211454", 340282366920938463463374607431768211454),
        ("e = 'b'::ENUM('a', 'b')", "b"),
        ("tn = '12:34:56.789012345'::TIME_NS", 45296789012345),
    ],
)
def test_constants_of_types_missing_from_the_recordings(predicate: str, value: object) -> None:
    client = Client("CREATE TABLE t(un UUID, hu HUGEINT, uh UHUGEINT, e ENUM('a', 'b'), tn TIME_NS)")
    client.connection.execute("INSERT INTO t VALUES (uuid(), 1, 1, 'a', '00:00:00')")
    parsed = filters.parse(client.sent(predicate) or "")
    (node,) = parsed.predicates
    assert isinstance(node, filters.Comparison)
    assert isinstance(node.right, filters.Constant)
    assert str(node.right.value) == str(value)
    difference = f"SELECT count(*) FROM t WHERE ({filters.to_sql(parsed)}) IS DISTINCT FROM ({predicate})"
    assert client.connection.execute(difference).fetchone() == (0,)


def test_oracle_and_rows_agree_about_nan() -> None:
    """In DuckDB's order NaN is the greatest value and equals itself."""
    (selected,) = Oracle(ROWS).kept_by_client(["d > 'inf'::DOUBLE AND d = 'nan'::DOUBLE"])
    assert len(selected) == sum(value is not None and value != value for value in ROWS["d"].to_pylist()) > 0
