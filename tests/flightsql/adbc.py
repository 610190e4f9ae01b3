"""Connections of the ADBC driver for Flight SQL."""

from __future__ import annotations

from typing import Any

import adbc_driver_flightsql.dbapi as flightsql
from adbc_driver_flightsql import DatabaseOptions


def connected(location: str, token: str = "", catalog: str = "", *, cookies: bool = False) -> Any:
    """A connection to the server at a location, with a token and a default catalog. Only with `cookies`, it keeps a session."""
    options = {}
    if token:
        options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {token}"
    if catalog:
        options[f"{DatabaseOptions.RPC_CALL_HEADER_PREFIX.value}airport-catalog"] = catalog
    if cookies:
        options[DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value] = "true"
    return flightsql.connect(location, db_kwargs=options, autocommit=True)


def rows(cursor: Any, query: str, *parameters: Any) -> list[Any]:
    """The rows of a query."""
    cursor.execute(query, parameters or None)
    found: list[Any] = cursor.fetchall()
    return found
