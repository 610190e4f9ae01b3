"""Copies on Spark: the work of `metastore.ingest` on many machines, and rows of databases over JDBC.

Spark reads the sources and writes the data files; the process of the worker commits them, like any other commit to a managed
table. So Spark needs neither Iceberg's jars nor access to the metastore, and a task that is repeated, or that runs twice,
leaves files that nobody ever sees.

Changes of PostgreSQL are read by the worker itself, without Java: `postgres_log` follows a table, `replication_slots` keeps its
place in the log, `pgoutput` decodes messages, `log_rows` says what is left of them, and `log_changes` writes the rows. Spark
joins their keys.
"""
