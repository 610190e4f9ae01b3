"""Folders of files as tables, without a log: Parquet, CSV and JSON.

`listings` has what they share: snapshots that are listings of files, and the merged schemas of these files.
"""
