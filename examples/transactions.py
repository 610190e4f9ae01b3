"""Transactions: a ledger whose bookings count only when the transaction that made them is committed.

Start it with `python examples/transactions.py [location]`. From Python, two statements are one:

    from skiway.client import AirportClient
    with AirportClient("grpc://127.0.0.1:50051", "bank") as db, db.transaction(explicit=True):
        db.insert("ledger.bookings", pa.table({"account": ["Ada"], "amount": [-10]}))
        db.insert("ledger.bookings", pa.table({"account": ["Grace"], "amount": [10]}))

An error inside the block takes both back. From DuckDB they stay two, whatever BEGIN, COMMIT and ROLLBACK say: it asks for
a transaction, but tells nobody how it ended, so the server commits each statement that writes when it has succeeded.

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'bank' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    BEGIN; INSERT INTO bank.ledger.bookings VALUES ('Ada', -1); ROLLBACK;
    SELECT * FROM bank.ledger.bookings;

Ctrl-C ends the server.
"""

import sys
import threading
import uuid

import pyarrow as pa

from skiway.airport import (
    Catalog,
    CatalogBuilder,
    DmlResult,
    Insertable,
    Table,
    Transactional,
    TransactionManager,
    TransactionStatus,
    current_request,
    serve,
)
from skiway.errors import NotFound, PreconditionFailed

SCHEMA = pa.schema({"account": pa.string(), "amount": pa.int64()})
NOTHING = SCHEMA.empty_table()
KEPT = 10_000  # DuckDB begins a transaction for each statement and ends none, so the oldest are forgotten


class Ledger(TransactionManager):
    """Committed bookings, and those of each transaction, which nobody else sees."""

    def __init__(self):
        self._lock = threading.Lock()
        self._committed = pa.table({"account": ["Ada", "Grace"], "amount": [100, 100]}, SCHEMA)
        self._status, self._own = {}, {}

    def begin(self):
        with self._lock:
            transaction_id = str(uuid.uuid4())
            self._status[transaction_id] = TransactionStatus.ACTIVE
            if len(self._status) > KEPT:
                oldest = next(iter(self._status))
                self._own.pop(oldest, None)
                del self._status[oldest]
            return transaction_id

    def commit(self, transaction_id):
        with self._lock:
            self._committed = pa.concat_tables(
                [self._committed, self._end(transaction_id, TransactionStatus.COMMITTED)]
            )

    def rollback(self, transaction_id):
        with self._lock:
            self._end(transaction_id, TransactionStatus.ABORTED)

    def status(self, transaction_id):
        return self._status.get(transaction_id)

    def _end(self, transaction_id, status):
        before = self._status.get(transaction_id)
        if before is None:
            raise NotFound(f"transaction {transaction_id!r} is not known here, or forgotten: begin a new one")
        if before not in (TransactionStatus.ACTIVE, status):
            raise PreconditionFailed(f"transaction {transaction_id!r} is {before} already")
        self._status[transaction_id] = status
        return self._own.pop(transaction_id, NOTHING)

    def seen_by(self, transaction_id):
        with self._lock:
            return pa.concat_tables([self._committed, self._own.get(transaction_id, NOTHING)])

    def add(self, rows, transaction_id):
        with self._lock:
            if self.status(transaction_id) is TransactionStatus.ACTIVE:
                self._own[transaction_id] = pa.concat_tables([self._own.get(transaction_id, NOTHING), rows])
            else:  # without a transaction, as all but the first write between BEGIN and COMMIT of DuckDB
                self._committed = pa.concat_tables([self._committed, rows])


class Bookings(Table, Insertable):
    name = "bookings"
    schema = SCHEMA

    def __init__(self, ledger):
        self._ledger = ledger

    def scan(self, options):
        return self._ledger.seen_by(current_request().transaction_id)

    def insert(self, rows, options):
        new = rows.read_all().cast(SCHEMA)
        self._ledger.add(new, current_request().transaction_id)
        return DmlResult(new.num_rows, new)


class Bank(Catalog, Transactional):
    name = "bank"

    def __init__(self):
        self._ledger = Ledger()
        tables = CatalogBuilder()
        tables.schema("ledger").table(Bookings(self._ledger))
        self._schemas = tables.build().schemas()

    def schemas(self):
        return self._schemas

    @property
    def transactions(self):
        return self._ledger


def catalog() -> Catalog:
    return Bank()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
