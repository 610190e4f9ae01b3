"""The wire format of the Airport protocol, shared by the server and the client.

`frames` and `messages` encode record batches, `payloads` the bodies of actions; `headers` has the names of gRPC headers,
and `duckdb_sql` DuckDB's type names and SQL literals.
"""

__all__: list[str] = []
