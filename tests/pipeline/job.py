"""`job.py FOLDER OUT [--master M | --remote R]`: profile the table `t` of a folder and write the profile to a file.

Run in a process of its own: a process has one Spark, and that of a cluster or a Connect server is another one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq

from skiway.formats import open_source
from skiway.pipeline.layouts import file_schemas
from skiway.pipeline.profiling import profile
from skiway.pipeline.session import session


def main() -> None:
    folder, out, kind, where = sys.argv[1:]
    settings = {"spark.sql.shuffle.partitions": 2}
    if kind == "--remote":
        spark = session("job", remote=where, **settings)
        assert not hasattr(type(spark), "_jsc"), "a session of Connect has no Java of its own"
    else:
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        spark = session("job", where, **settings, **loopback, **{"spark.cores.max": 2, "spark.executor.memory": "600m"})
    with open_source("parquet", folder) as source:
        handle = source.load((), "t")
        snapshot = handle.current()
        assert snapshot is not None
        found = profile(
            spark,
            handle.files(snapshot),
            handle.schema,
            schemas=file_schemas(handle, snapshot),
            specs=handle.partition_specs,
        )
    pq.write_table(found, Path(out))
    spark.stop()


if __name__ == "__main__":
    main()
