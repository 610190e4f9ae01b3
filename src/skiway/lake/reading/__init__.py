"""What calls read of a table: its state, its columns, scans and statistics.

`state` decides which columns and which snapshot a call reads; scans and statistics follow from them.
"""
