"""SELECT over Airport compared with DuckDB's `read_parquet` on the same files, for a table of each format.

The server runs in its own process. Both readers run in this one and take turns. Each fetches the same rows into an Arrow
table, or has DuckDB aggregate them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from bench.lake_client import FromFiles, OverAirport, Question
from bench.lake_home import served_lake
from bench.report import Figure
from bench.turns import Times, taken_in_turns
from skiway.client import col

ROWS: Final = 5_000_000
ROUNDS: Final = 5
LOOKUPS: Final = 40
AIM: Final = 2.0  # at most this many times as long as DuckDB
PEER: Final = "DuckDB's read_parquet"


def fetched(total: int) -> tuple[Question, ...]:
    """Queries that return rows."""
    low, high = total // 2, total // 2 + total // 1000
    return (
        Question("all rows and columns"),
        Question("one column of ten", select="amount", columns=["amount"]),
        Question(
            "one row of a thousand, by a sorted column",
            condition=f"WHERE id >= {low} AND id < {high}",
            where=(col("id") >= low) & (col("id") < high),
        ),
    )


AGGREGATE: Final = Question(
    "aggregates of three columns",
    select='state, count(*), sum(amount), max("at")',
    columns=["state", "amount", "at"],
    rest="GROUP BY state ORDER BY state",
)


def one_row(number: int) -> Question:
    """The query for the row with this id."""
    return Question("one row by its id", condition=f"WHERE id = {number}", where=col("id") == number)


def figures(total: int = ROWS) -> Iterator[Figure]:
    """Yield the figures of this part."""
    with served_lake(total) as (location, twins):
        for format_, twin in twins.items():
            with OverAirport(location, twin) as ours, FromFiles(twin) as peer:
                yield from compared(format_, ours, peer, total)


def compared(format_: str, ours: OverAirport, peer: FromFiles, total: int) -> Iterator[Figure]:
    for asked in fetched(total):
        assert ours.table(asked).num_rows == peer.table(asked).num_rows, "the two do not agree"
        times = taken_in_turns(_asking(ours.table, asked), _asking(peer.table, asked), ROUNDS)
        yield _figure(f"{format_}: {asked.name}", times)
    assert [row[:2] for row in ours.computed(AGGREGATE)] == [row[:2] for row in peer.computed(AGGREGATE)]
    times = taken_in_turns(_asking(ours.computed, AGGREGATE), _asking(peer.computed, AGGREGATE), ROUNDS)
    yield _figure(f"{format_}: {AGGREGATE.name}", times)
    draw = random.Random(1)
    times = taken_in_turns(
        lambda: ours.table(one_row(draw.randrange(total))), lambda: peer.table(one_row(draw.randrange(total))), LOOKUPS
    )
    yield _figure(f"{format_}: one row by its id", times)


def _asking(answer: Callable[[Question], object], asked: Question) -> Callable[[], object]:
    return lambda: answer(asked)


def _figure(name: str, times: Times) -> Figure:
    return Figure(name, "ms", times.ours * 1000, times.peer * 1000, times.ratio, aim_at_most=AIM, peer_is=PEER)


if __name__ == "__main__":
    import sys

    from bench.report import report

    report("lake", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
