"""The schema `skiway` of every catalog: system tables that show the content of the metastore.

`schema` serves it and its tables of jobs and scans; `tables` computes the rows of the others.
"""
