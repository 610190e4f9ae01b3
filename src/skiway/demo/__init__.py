"""The demo: one winter of a company with four ski resorts, as its lake.

winter       what happened: snow, wind, visitors
records      that as rows of six tables
sources      those rows as others would keep them: Iceberg, Delta and Parquet files
home         where all of it is kept, and how far it is made
making       connectors, both passes of their synchronisation, and a managed table
queries      three questions, and their answers by Airport
poster       what is printed
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
