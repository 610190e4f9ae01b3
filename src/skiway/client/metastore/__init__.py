"""The typed client of the metastore: `Metastore`, and what it answers with."""

from skiway.client.metastore.changes import KEEP
from skiway.client.metastore.directory import Entry
from skiway.client.metastore.listing import Listing
from skiway.client.metastore.metastore import Metastore
from skiway.client.metastore.names import Id, dotted
from skiway.client.metastore.resources import Account, Catalog, Meta, Namespace, Table, View
from skiway.client.metastore.retries import Retries
from skiway.client.metastore.snapshot import Snapshot
from skiway.client.metastore.table_stats import TableStats

__all__ = [
    "KEEP",
    "Account",
    "Catalog",
    "Entry",
    "Id",
    "Listing",
    "Meta",
    "Metastore",
    "Namespace",
    "Retries",
    "Snapshot",
    "Table",
    "TableStats",
    "View",
    "dotted",
]
