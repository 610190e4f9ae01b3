"""Delta Lake tables: delta-rs reads the log, and the shared Parquet reader reads the rows.

`table` opens tables and folders of tables; `log` reads versions and schemas.
"""
