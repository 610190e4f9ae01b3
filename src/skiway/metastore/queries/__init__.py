"""Queries: leases that keep the snapshots a query reads until it ends.

The calls of `QueryService` are exported here. `inputs` resolves names, `pins` fixes snapshots, `leases` stores them.
"""

from skiway.metastore.queries.api import RULES, begin, end, get, pinned, renew
from skiway.metastore.queries.leases import QueryRules

__all__ = ["RULES", "QueryRules", "begin", "end", "get", "pinned", "renew"]
