"""The metastore: accounts, catalogs, namespaces, tables, views, snapshots, statistics, grants, policies, quality rules,
connectors, jobs, queries and transactions.

The exported modules are plain functions that take and return messages, independent of any transport. Their first argument
is a `Realm`, the metastore as one account, or one caller in it, sees it; `PLATFORM` is the account of the operators.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.metastore import (
    connectors,
    events,
    exports,
    jobs,
    managed,
    platform,
    quality,
    queries,
    search,
    statistics,
    transactions,
    webhooks,
)
from skiway.metastore.records.realm import PLATFORM, Realm
from skiway.metastore.resources import (
    accounts,
    catalogs,
    directory,
    grants,
    namespaces,
    policies,
    snapshots,
    tables,
    views,
)
