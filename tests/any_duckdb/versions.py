"""Versions of DuckDB that `skiway.duckdb` is tested with."""

DUCKDB = "SKIWAY_DUCKDB"
"""The environment variable with the folder of the DuckDB to test."""
VERSIONS = ("1.4.0", "1.4.4", "1.5.5", "2.0.0")
