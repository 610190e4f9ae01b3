"""Iceberg metadata for tables of other formats: their data files stay where they are, and Iceberg clients read them.

`columns` makes schemas and the name mapping, `data_files` checks that all clients read a file correctly and makes its entry
for a manifest, `versions` makes a snapshot of each version. A table that some client would read incorrectly is refused with
the reason.
"""
