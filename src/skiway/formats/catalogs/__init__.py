"""Upstream catalogs that list tables of other formats: AWS Glue, Hive Metastore and Unity Catalog.

REST and SQL catalogs of Iceberg are in `skiway.formats.iceberg.sources`.
"""
