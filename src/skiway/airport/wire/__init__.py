"""The wire format of the Airport protocol, shared by the server and the client.

`frames` and `encoding` encode record batches, within the limits of `sizes`; `protocol` has the bodies of actions and the names of
gRPC headers, and `duckdb_sql` DuckDB's type names and SQL literals.
"""

__all__: list[str] = []
