"""Iceberg tables: metadata, manifests, planning, rows, and everything needed to write them.

Nothing is imported here because PyIceberg takes long to load. Start with `sources` and `table` to read,
`commits` and `data_files` to write, and `warehouse` for the place of managed tables.
"""
