"""Profiles of data files: computed by one Spark pass, stored per file, merged into the statistics of a snapshot.

`profile_snapshot` does all of this for one snapshot. Importing this package does not load Spark.
"""

import skiway.extras.spark  # noqa: F401 - names the extra to install
from skiway.pipeline.profile.snapshots import ProfileReport, profile_snapshot

__all__ = ["ProfileReport", "profile_snapshot"]
