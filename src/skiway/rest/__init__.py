"""The Iceberg REST catalog, for PyIceberg, Spark, Trino, DuckDB's iceberg extension and other clients.

`RestApp(access, observers, warehouse=…)` is an ASGI app, usually mounted at `/iceberg`. `routes` lists what it serves.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.rest.app import RestApp, RestOptions
from skiway.rest.calls import Mirrors, TokenIssuer

__all__ = ["Mirrors", "RestApp", "RestOptions", "TokenIssuer"]
