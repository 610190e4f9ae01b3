"""Connectors: upstream catalogs and folders whose tables are mirrored into a catalog.

The calls of `ConnectorService` are exported here. `specs` validates definitions, `credentials` keeps their secrets.
"""

from skiway.metastore.connectors.api import (
    calls,
    capture_mode,
    create,
    find,
    list_,
    scope,
    selects,
    trigger,
)
