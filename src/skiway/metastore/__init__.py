"""The catalog of catalogs as plain functions: they take and return messages and know nothing about transports.

The modules exported here have the calls that the doors serve. A `Realm` is the metastore as one account sees it, and
the first argument of every call; `PLATFORM` is the account of the operator.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.metastore import connectors, jobs, managed, queries, statistics
from skiway.metastore.records.realm import PLATFORM, Realm
from skiway.metastore.resources import accounts, catalogs, directory, namespaces, snapshots, tables, views

__all__ = [
    "PLATFORM",
    "Realm",
    "accounts",
    "catalogs",
    "connectors",
    "directory",
    "jobs",
    "managed",
    "namespaces",
    "queries",
    "snapshots",
    "statistics",
    "tables",
    "views",
]
