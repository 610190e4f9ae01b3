 (0’B
files.profiled2B
quality.row_countexactB
rows.profiled4B

rows.total4