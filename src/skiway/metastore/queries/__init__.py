"""Queries: leases that keep the snapshots a query reads until it ends.

The calls of `QueryService` are exported here. `inputs` resolves names, `pins` fixes snapshots, `leases` stores them, and
`transaction_leases` stores those of transactions.
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
