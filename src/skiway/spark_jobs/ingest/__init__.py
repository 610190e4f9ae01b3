"""Copies on Spark: the work of `metastore.ingest` on many machines, and rows of databases over JDBC.

Spark reads the sources and writes the data files; the process of the worker commits them, like any other commit to a managed
table. So Spark needs neither Iceberg's jars nor access to the metastore, and a task that is repeated, or that runs twice,
leaves files that nobody ever sees.
"""
