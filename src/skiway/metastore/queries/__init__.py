"""Queries: leases that keep the snapshots a query reads until it ends.

The calls of `QueryService` are exported here. `inputs` resolves names, `pins` fixes snapshots, `leases` stores them.
"""

from skiway.metastore.queries.leases import RULES, QueryRules, begin, end, get, pinned, renew

__all__ = ["RULES", "QueryRules", "begin", "end", "get", "pinned", "renew"]
