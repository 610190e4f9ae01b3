"""Branches of the lake: a catalog as it was at one moment, with changes of its own that can be merged.

opening         the realm of a branch, for which all functions of the metastore work as on main
bases           what a branch begins with: a list of what its catalog contains
differences     what has changed on a branch and on main since then
required        the rules that must pass before a merge into a protected catalog, and who may merge
merging         the changes of a branch, published on main with one compare-and-set
life            how branches are used, and the end of idle and deleted ones
api             the calls that doors make, exported here
"""

from skiway.metastore.branches.api import create, delete, diff, get, list_, merge
from skiway.metastore.branches.life import sweep
from skiway.metastore.branches.opening import decision_on_branch, on_branch, opened_again, split_name
