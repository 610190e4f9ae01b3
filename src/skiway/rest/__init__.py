"""The Iceberg REST catalog, for PyIceberg, Spark, Trino, DuckDB's iceberg extension and other clients.

`RestApp(access, observers, warehouse=…)` is an ASGI app, usually mounted at `/iceberg`. `routes` lists what it serves.
"""

import skiway.foundation.extras.lake  # noqa: F401 - names the extra to install
from skiway.rest.app import RestApp, RestOptions
from skiway.rest.calls import Mirrors, TokenIssuer

__all__ = ["Mirrors", "RestApp", "RestOptions", "TokenIssuer"]
