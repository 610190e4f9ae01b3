"""Skiway: a lakehouse catalog service that DuckDB lands on."""

__version__ = "0.1.0"
