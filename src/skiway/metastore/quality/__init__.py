"""Quality rules of tables, and their results.

The calls of `QualityService` are exported here. `rules` stores rules, `facts` collects what is known about a table, `verdicts`
decides, and `checks` stores and repeats the decisions.
"""

from skiway.metastore.quality.checks import after_profile, check, check_metadata, check_rows, get_check, list_results
from skiway.metastore.quality.rules import CALLS, list_, scan
