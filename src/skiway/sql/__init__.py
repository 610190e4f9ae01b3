"""SQL of callers over tables: queries run on the server, next to the files, and only their results travel.

A query runs in the sandbox, with the rights of its caller: its tables are looked up in a catalog on behalf of the caller, and
nothing else can be read. DuckDB reads plain Parquet files itself; everything else is scanned by the table's own reader.
"""

from skiway.sql.metadata_queries import simple_view
from skiway.sql.queries import Query, QueryEngine
from skiway.sql.relations import CountsRows, DirectFiles, Files, Find, SqlView, including, unknown_column

__all__ = [
    "CountsRows",
    "DirectFiles",
    "Files",
    "Find",
    "Query",
    "QueryEngine",
    "SqlView",
    "including",
    "simple_view",
    "unknown_column",
]
