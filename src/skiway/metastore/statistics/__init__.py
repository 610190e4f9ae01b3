"""Statistics of snapshots: of tables, columns and files.

The calls of `StatisticsService` are exported here. `bounds` compares values, `file_table` stores files as Arrow tables.
"""

from skiway.metastore.statistics.api import (
    column_statistics,
    column_statistics_address,
    file_statistics,
    get_table,
    has_column_statistics,
    list_columns,
    list_files,
    put_columns,
    put_files,
    put_table,
    table_statistics,
)
from skiway.metastore.statistics.sizes import list_tables

__all__ = [
    "column_statistics",
    "column_statistics_address",
    "file_statistics",
    "get_table",
    "has_column_statistics",
    "list_columns",
    "list_files",
    "list_tables",
    "put_columns",
    "put_files",
    "put_table",
    "table_statistics",
]
