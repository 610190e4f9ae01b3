"""The statements that change tables: INSERT, UPDATE, DELETE and MERGE, changes of columns, and their commits."""
