"""Delta Lake tables: delta-rs reads the log, the shared Parquet reader reads the rows.

`table` opens tables and folders of tables; `log` reads the versions and the schema of a table.
"""
