"""The demo lake: one winter of a company with four ski resorts.

dataset     the generated data: a winter, and the rows of its tables
sources     the company's systems, which store the rows as Iceberg, Delta and Parquet
home        the demo's directory, and whether it is complete
build       creates connectors, synchronizes them, and creates a managed table
queries     three example queries, answered over Airport
output      the text that the demo prints
"""

from skiway.foundation import extras

extras.check("lake")

__all__: list[str] = []
