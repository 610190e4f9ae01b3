"""Queries: leases that keep the snapshots a query reads until it ends.

The calls of `QueryService` are exported here. `pins` resolves names and fixes snapshots, and `leases` stores the leases of queries and
transactions.
"""

from skiway.metastore.queries.leases import (
    RULES,
    QueryRules,
    TransactionUse,
    begin,
    check_transaction,
    end,
    get,
    list_,
    pinned,
    renew,
    scan,
    use_in_transaction,
)
