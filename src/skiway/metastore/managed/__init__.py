"""Managed tables and views: Iceberg tables and views whose catalog is the metastore.

    locations       where tables are: folders of the warehouse, and places that callers choose
    states          how the states of tables are loaded and published, with the records of their snapshots
    tables          create, drop and rename tables, also those of the metastore's own API
    commits         change one or several tables; REST clients that lose races take turns
    registering     tables from existing metadata files, and dropped tables that are restored
    views           views, as Iceberg clients see them

The calls that doors and jobs make are exported here.
"""

from skiway.metastore.managed.commits import ClientTurns, TableChange, change, change_all, commit, commit_all
from skiway.metastore.managed.registering import DroppedTable, dropped_tables, register, undrop
from skiway.metastore.managed.states import ManagedTable, load, open_current, open_earlier, read_state
from skiway.metastore.managed.tables import (
    TableCreation,
    create,
    create_filled,
    create_requested,
    create_staged,
    drop,
    drop_unused,
    rename,
    require_addressable,
)
from skiway.metastore.managed.views import (
    IcebergView,
    commit_view,
    create_view,
    drop_view,
    has_columns,
    load_view,
    register_view,
    rename_view,
)
