"""Managed tables and views: Iceberg tables and views whose catalog is the metastore.

`tables` creates and drops them, `requests` creates those of the metastore's API, `states` loads and publishes their states, and
`commits` changes one or several of them, in `client_turns` if clients compete. `views` does the same for views, and
`view_columns` translates the types of their columns.
"""

from skiway.metastore.managed.commits import (
    ClientTurns,
    TableChange,
    TableCreation,
    append_with_retry,
    change,
    change_all,
    commit,
    commit_all,
)
from skiway.metastore.managed.registering import DroppedTable, dropped_tables, register, undrop
from skiway.metastore.managed.states import ManagedTable, load, open_current, open_earlier
from skiway.metastore.managed.tables import (
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
