"""Managed tables: Iceberg tables in the warehouse whose catalog is the metastore.

`tables` creates and drops them, `requests` creates those of the metastore's API, `states` loads and publishes their states, and
`commits` changes one or several of them.
"""

from skiway.metastore.managed.commits import TableChange, append_with_retry, change, change_all, commit
from skiway.metastore.managed.dropped import DroppedTable, dropped_tables, undrop
from skiway.metastore.managed.requests import create_requested
from skiway.metastore.managed.states import ManagedTable, load, open_current, open_earlier
from skiway.metastore.managed.tables import (
    create,
    create_filled,
    create_staged,
    drop,
    drop_unused,
    rename,
    require_addressable,
)

__all__ = [
    "DroppedTable",
    "ManagedTable",
    "TableChange",
    "append_with_retry",
    "change",
    "change_all",
    "commit",
    "create",
    "create_filled",
    "create_requested",
    "create_staged",
    "drop",
    "drop_unused",
    "dropped_tables",
    "load",
    "open_current",
    "open_earlier",
    "rename",
    "require_addressable",
    "undrop",
]
