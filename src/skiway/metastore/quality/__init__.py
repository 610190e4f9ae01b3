"""Quality rules of tables, and their results.

The calls of `QualityService` are exported here. `rules` stores rules, `facts` collects what is known about a table, `verdicts`
decides, `results` stores what was decided, `checks` does all of that, and `sweeps` repeats it.
"""

from skiway.metastore.quality.checks import after_profile, check, check_metadata, check_rows, get_check, list_results
from skiway.metastore.quality.rules import CALLS, list_, scan
