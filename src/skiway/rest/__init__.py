"""Iceberg REST: the catalogs of an account, as PyIceberg, Spark, DuckDB and others speak to them.

`rest_app(realm_of, authenticator, authorizer, warehouse=…)` is an ASGI app, to be mounted at `/iceberg`.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.rest.app import RestApp, RestOptions, rest_app
from skiway.rest.mirrored import Mirrors

__all__ = ["Mirrors", "RestApp", "RestOptions", "rest_app"]
