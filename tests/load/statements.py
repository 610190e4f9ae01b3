"""One client under load: it runs random statements of all kinds in its account, and measures them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pyarrow as pa

from skiway.client import AirportClient, col
from skiway.errors import Conflict, LimitExceeded, SkiwayError

SCHEMA = pa.schema({"id": pa.int64(), "word": pa.string(), "amount": pa.float64()})
SHARED = "s.shared"
"""The table that all clients of an account read, and sometimes change."""
SHARED_ROWS = 20_000
THINKING_S = 0.3
"""The pause of a client between two statements, on average."""
RENEW_AFTER = 30
"""After this many statements a client drops its own table and creates it again, so that its history stays short."""


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {"id": numbers, "word": [f"word {number % 97}" for number in numbers], "amount": [0.5 * n for n in numbers]},
        schema=SCHEMA,
    )


@dataclass
class Measured:
    """The durations of statements by kind, and their failures: expected ones by class, and violations."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class LoadClient:
    """A client with a connection and a table of its own."""

    def __init__(self, addresses: dict[str, str], token: str, name: str, seed: int) -> None:
        self.measured = Measured()
        self._chance = Random(seed)
        self._table = f"s.{name}"
        self._expected: int | None = None  # rows in its own table; None before it is created
        self._statements = 0
        self._db = AirportClient(addresses["airport"], "lake", token=token, timeout_s=120)
        self._http = httpx.Client(
            base_url=f"{addresses['http']}/iceberg",
            headers={"authorization": f"Bearer {token}"},
            timeout=120,
            verify=False,
        )
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "point read": (30, self._read_point),
            "read": (12, self._read),
            "insert": (20, self._insert),
            "update": (6, self._update),
            "delete": (4, self._delete),
            "update shared": (2, self._update_shared),
            "own rows": (6, self._check_own),
            "list": (6, self._list),
            "rest": (14, self._rest),
        }

    def run(self, ended: threading.Event) -> None:
        """Run statements until the end, then compare the rows with what was acknowledged."""
        kinds = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        with self._db, self._http:
            while not ended.is_set():
                if self._expected is None or self._statements >= RENEW_AFTER:
                    self._measure("ddl", self._renew)
                else:
                    (kind,) = self._chance.choices(kinds, weights)
                    self._measure(kind, self._kinds[kind][1])
                self._statements += 1
                ended.wait(self._chance.uniform(0, 2 * THINKING_S))
            if self._expected is not None:
                self._measure("own rows", self._check_own)

    def _measure(self, kind: str, statement: Callable[[], None]) -> None:
        began = time.perf_counter()
        try:
            statement()
        except (Conflict, LimitExceeded) as error:
            self.measured.refused[type(error).__name__] += 1
            return
        except (SkiwayError, httpx.HTTPError, AssertionError) as error:
            self.measured.violations.append(f"{kind}: {type(error).__name__}: {str(error)[:300]}")
            return
        self.measured.seconds[kind].append(time.perf_counter() - began)

    def _renew(self) -> None:
        if self._expected is not None:
            self._check_own()
            self._expected = None
            self._db.drop_table(self._table)
        self._db.create_table(self._table, SCHEMA)
        self._expected = self._statements = 0

    def _read_point(self) -> None:
        number = self._chance.randrange(SHARED_ROWS)
        found = self._db.scan(SHARED, where=col("id") == number).read_all()
        assert found.num_rows == 1, f"{found.num_rows} rows with id {number}"

    def _read(self) -> None:
        found = self._db.scan(SHARED, columns=["amount"]).read_all()
        assert found.num_rows == SHARED_ROWS, f"{found.num_rows} rows instead of {SHARED_ROWS}"

    def _insert(self) -> None:
        assert self._expected is not None
        count = self._chance.choice((1, 1, 10, 2000))
        self._expected += self._db.insert(self._table, rows(self._expected, count)).count

    def _update(self) -> None:
        self._db.update(self._table, {"word": "changed"}, where=col("id") < 5)

    def _delete(self) -> None:
        assert self._expected is not None
        last = self._expected - 1
        deleted = self._db.delete(self._table, where=col("id") == last).count
        self._expected -= deleted

    def _update_shared(self) -> None:
        number = self._chance.randrange(SHARED_ROWS)
        self._db.update(SHARED, {"amount": -1.0}, where=col("id") == number)

    def _check_own(self) -> None:
        found = self._db.count(self._table)
        assert found == self._expected, f"{found} rows instead of the {self._expected} that were acknowledged"

    def _list(self) -> None:
        self._db.reload()
        assert any(schema.name == "s" for schema in self._db.schemas())

    def _rest(self) -> None:
        path = self._chance.choice(("namespaces", "namespaces/s/tables", "namespaces/s/tables/shared"))
        answer = self._http.get(f"/v1/lake/{path}")
        if answer.status_code == 429:
            raise LimitExceeded("429")
        answer.raise_for_status()


def as_json(measured: Measured) -> dict[str, Any]:
    return {"seconds": measured.seconds, "refused": measured.refused, "violations": measured.violations}
