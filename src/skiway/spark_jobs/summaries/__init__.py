"""Figures of columns, computed from Arrow batches by the Python workers of Spark, or of a few small files by the process of a job.

Every worker of Spark imports these modules when it starts, so they import only pyarrow, numpy and datasketches.
"""
