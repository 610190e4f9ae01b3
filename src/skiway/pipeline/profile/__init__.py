"""Profiles: one Spark pass over data files, and the statistics merged from it.

`profile_snapshot` runs the whole job for one snapshot. Importing this package does not load Spark.
"""

import skiway.extras.spark  # noqa: F401 - names the extra to install
from skiway.pipeline.profile.snapshots import ProfileReport, profile_snapshot

__all__ = ["ProfileReport", "profile_snapshot"]
