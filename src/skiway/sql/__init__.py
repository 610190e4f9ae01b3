"""SQL of callers over tables: queries run on the server, next to the files, and only their results travel.

A query runs in the sandbox, with the rights of its caller: its tables are looked up in a catalog on behalf of the caller, and
nothing else can be read. DuckDB reads Parquet files of tables itself if it reads them as the table's own reader would, which
scans everything else.
"""

from skiway.sql.queries import Query, QueryEngine
from skiway.sql.relations import CountsRows, DirectFiles, Find, SqlView, including, simple_view, unknown_column
