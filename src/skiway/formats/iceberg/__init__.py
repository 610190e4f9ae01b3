"""Iceberg tables: metadata, manifests, planning, rows, and everything needed to write them.

Nothing is imported here, because PyIceberg takes long to load; `lib` loads its modules when they are used. Start with `sources`
and `table` to read, with `commits` and `data_files` to write, and with `warehouse` for the location of managed tables.
"""
