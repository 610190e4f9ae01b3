"""Readers of data files in Parquet, Avro and ORC, which all table formats share.

`reading` streams the rows of files in any format, and `scanning` makes batches of a file rows of a scan. `footers` reads the statistics
of Parquet files, and `pages` checks their sizes.
"""
