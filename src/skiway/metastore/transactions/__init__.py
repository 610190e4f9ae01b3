"""Transactions: rows are written for several tables, and become visible in all of them together, or never.

The calls of `TransactionService` are exported here. `staged_writes` stores transactions, `api` commits and aborts them.
"""

from skiway.metastore.transactions.api import (
    StagingArea,
    abort,
    append,
    begin,
    commit,
    decode_rows,
    get,
    list_,
    malformed_rows,
)
from skiway.metastore.transactions.staged_writes import RULES, TransactionRules
