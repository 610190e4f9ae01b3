"""The expressions of policies, compiled in the sandbox without the types of columns.

Servers with a lake check expressions with the columns of tables, too: `skiway.lake.policy_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from skiway.metastore.records.policies import Subject
from skiway.metastore.resources.policies import Relation
from skiway.model import v1
from skiway.sandbox.queries import Queries

__all__ = ["SandboxedExpressions"]


class SandboxedExpressions:
    """Compiles the expressions of a policy. The process for that is started when it is first needed."""

    def __call__(self, policy: v1.Policy, relations: Sequence[Relation]) -> Sequence[str]:  # noqa: ARG002
        """The columns that the policy reads; `InvalidArgument` if an expression is not valid."""
        text = policy.row_filter.predicate if policy.HasField("row_filter") else policy.mask.expression
        if not text:
            return []
        process = self._queries.start()
        try:
            (expression,) = process.expressions([text], Subject().values)
            return expression.columns
        finally:
            process.close()

    @cached_property
    def _queries(self) -> Queries:
        return Queries(memory_limit="256MB", timeout_s=30.0, workers=2, threads=1)
