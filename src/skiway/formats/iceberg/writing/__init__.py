"""Files that are written for Iceberg tables: data files, and files that delete rows."""
