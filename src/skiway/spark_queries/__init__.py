"""Queries of callers on Spark: `lake.skiway.query('SELECT …', engine => 'spark')`.

Spark's SQL can do more than read tables, so each query has processes of its own, which know none of the server's secrets:

    server                engine       limits, waiting queries, results
      |  pipe
    supervisor            supervisor   limits memory, ends all processes of the query, removes its files
      |
    worker                worker       confines itself, starts Spark, and reads the tables over Airport with a token of the
      |                                caller that can only read, and expires
    Java, Python tasks

Importing this package neither loads nor starts Spark.
"""
