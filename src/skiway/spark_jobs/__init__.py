"""Spark jobs: sessions and Java, the worker that runs jobs, and what jobs do on Spark: profiles, copies of rows, optimization,
quality rules, and queries of pipelines.

Importing this package neither loads nor starts Spark.
"""
