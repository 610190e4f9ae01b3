"""Importing this module raises `MissingExtra` unless the extra `lake` is installed."""

from __future__ import annotations

from typing import Final

from skiway.foundation.extras import require

LIBRARIES: Final = (
    "cachetools",
    "cryptography",
    "deltalake",
    "duckdb",
    "fastavro",
    "fsspec",
    "grpc_health",
    "grpc_reflection",
    "httptools",
    "httpx",
    "jinja2",
    "jwt",
    "markupsafe",
    "numpy",
    "obstore",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "pyiceberg",
    "requests",
    "rich",
    "sqlalchemy",
    "sqlglot",
    "starlette",
    "tenacity",
    "typer",
    "uvicorn",
)

require(*LIBRARIES, extra="lake", purpose="the lakehouse catalog service")
