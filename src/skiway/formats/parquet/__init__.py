"""Parquet: plain files and Hive-partitioned folders as tables, and the row reader that all formats share.

`table` opens files and folders, `reading` streams rows, `footers` reads the statistics of row groups, `schemas` merges
the schemas of files.
"""
