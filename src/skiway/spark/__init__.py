"""Spark's data source `airport`: Spark reads tables of Airport servers, and writes and streams tables of Skiway.

    from skiway.spark import AirportDataSource

    spark.dataSource.register(AirportDataSource)
    orders = spark.read.format("airport").option("location", "grpc://127.0.0.1:50051/lake").load("shop.orders")
    orders.write.format("airport").option("location", "grpc://127.0.0.1:50051/lake").mode("append").save("shop.copies")

Executors need this package, and no other part of Skiway.

    source       the data source
    options      its options
    reading      partitions and batches
    archives     faster starts of tasks
    streaming    streams of appended rows
    filters      Spark's filters as predicates of the client
    types        Arrow types as types of Spark
    writing      transactions of DataFrames that are written
    written_columns  their columns as those of a table
"""

from skiway.spark.source import AirportDataSource

__all__ = ["AirportDataSource"]
