"""Spark jobs: sessions and Java, the worker that runs jobs, and the profiles that statistics are made from.

Importing this package neither loads nor starts Spark.
"""
