"""Statistics of snapshots: of tables, columns and files.

The calls of `StatisticsService` are exported here. `bounds` compares values, `files` stores file lists as Arrow tables.
"""

from skiway.metastore.statistics.api import (
    file_statistics,
    get_table,
    list_columns,
    list_files,
    put_columns,
    put_files,
    put_table,
)

__all__ = ["file_statistics", "get_table", "list_columns", "list_files", "put_columns", "put_files", "put_table"]
