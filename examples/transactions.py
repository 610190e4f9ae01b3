"""Transactions: a ledger whose bookings become visible when their transaction commits.

Start it with `python examples/transactions.py [location]`. In Python, several statements can form a transaction:

    from skiway.client import AirportClient
    with AirportClient("grpc://127.0.0.1:50051", "bank") as db, db.transaction(explicit=True):
        db.insert("ledger.bookings", pa.table({"account": ["Ada"], "amount": [-10]}))
        db.insert("ledger.bookings", pa.table({"account": ["Grace"], "amount": [10]}))

An error in the block rolls both back. In DuckDB, they are always two transactions, even with BEGIN and COMMIT: DuckDB requests
a transaction id but does not report the end, so the server commits after each writing statement, and ROLLBACK has no effect.

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'bank' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    BEGIN; INSERT INTO bank.ledger.bookings VALUES ('Ada', -1); ROLLBACK;
    SELECT * FROM bank.ledger.bookings;

Press Ctrl-C to stop the server.
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
EMPTY = SCHEMA.empty_table()
MAX_TRANSACTIONS = 10_000  # DuckDB begins a transaction per statement and never ends one, so forget the oldest


class Ledger(TransactionManager):
    """The committed bookings, and the uncommitted bookings of each transaction."""

    def __init__(self):
        self._lock = threading.Lock()
        self._committed = pa.table({"account": ["Ada", "Grace"], "amount": [100, 100]}, SCHEMA)
        self._status, self._own = {}, {}

    def begin(self):
        with self._lock:
            transaction_id = str(uuid.uuid4())
            self._status[transaction_id] = TransactionStatus.ACTIVE
            if len(self._status) > MAX_TRANSACTIONS:
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
            raise NotFound(f"transaction {transaction_id!r} is unknown or forgotten: begin a new one")
        if before not in (TransactionStatus.ACTIVE, status):
            raise PreconditionFailed(f"transaction {transaction_id!r} is already {before}")
        self._status[transaction_id] = status
        return self._own.pop(transaction_id, EMPTY)

    def visible_to(self, transaction_id):
        """The committed bookings and those of the transaction."""
        with self._lock:
            return pa.concat_tables([self._committed, self._own.get(transaction_id, EMPTY)])

    def add(self, rows, transaction_id):
        """Add bookings to the transaction, or commit them at once if it is not active."""
        with self._lock:
            if self.status(transaction_id) is TransactionStatus.ACTIVE:
                self._own[transaction_id] = pa.concat_tables([self._own.get(transaction_id, EMPTY), rows])
            else:  # no transaction, or a later write of DuckDB after BEGIN
                self._committed = pa.concat_tables([self._committed, rows])


class Bookings(Table, Insertable):
    name = "bookings"
    schema = SCHEMA

    def __init__(self, ledger):
        self._ledger = ledger

    def scan(self, options):
        return self._ledger.visible_to(current_request().transaction_id)

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
