"""Folders of files as tables, without a log: Parquet, CSV and JSON.

`schemas` merges the schemas of the files of a folder.
"""
