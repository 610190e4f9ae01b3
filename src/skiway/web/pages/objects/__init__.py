"""The pages of tables and views, by their tabs.

tables      columns with their profiles, files, health, quality
views       columns, and the text in each dialect
rows        a page of rows, filtered and sorted
snapshots   the timeline, and the comparison of two points
lineage     what it is made from, and what is made from it
sharing     who can see it, and how other tools open it
"""
