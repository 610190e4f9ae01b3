"""Profiles of data files: computed by one pass, stored per file, merged into the statistics of a snapshot.

`snapshots.profile_snapshot` does all of this for one snapshot. Importing this package does not load Spark.
"""

from skiway.foundation import extras

extras.check("lake")
