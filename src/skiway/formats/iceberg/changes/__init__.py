"""Changes of Iceberg tables: commits of new snapshots, evolution of columns and partitions, and maintenance."""
