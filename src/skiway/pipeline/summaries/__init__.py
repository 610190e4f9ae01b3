"""Figures of columns, computed from Arrow batches by the Python workers of Spark.

Every worker imports these modules when it starts, so they import only pyarrow, numpy and datasketches.
"""
