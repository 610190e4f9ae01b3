"""What a run of the live tests has compared, for the summary at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from live.comparing import Difference
from live.known import KINDS, Known

__all__ = ["REPORT", "Report"]

TITLES = {"client": "limitations of the client", "design": "differences by design", "bug": "bugs"}


@dataclass(slots=True)
class Report:
    """Counts of compared and printed statements, and every difference with its explanation, if it has one."""

    client: str = ""
    compared: Counter[str] = field(default_factory=Counter)
    printed: int = 0
    differences: list[tuple[Difference, Known | None]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The summary."""
        unexplained = [difference for difference, known in self.differences if known is None]
        total = sum(self.compared.values())
        per_target = ", ".join(f"{target} {count:,}" for target, count in self.compared.items())
        lines = [self.client] if self.client else []
        if total:
            lines.append(f"{total:,} statements compared with plain DuckDB ({per_target})")
            lines.append(
                f"{len(unexplained)} unexplained differences, {len(self.differences) - len(unexplained)} known:"
            )
        for kind in KINDS:
            counts = Counter(known.reason for _, known in self.differences if known and known.kind == kind)
            if counts:
                lines.append(f"  {TITLES[kind]}")
                lines += [f"    {count:4} × {reason}" for reason, count in counts.most_common()]
        if self.printed:
            lines.append(f"{self.printed} statements of the documentation, the examples and the demo were run")
        return lines

    def details(self) -> str:
        """Every difference with its explanation."""
        return "\n\n".join(
            f"{difference}\n  {f'{known.kind}: {known.reason}' if known else 'UNEXPLAINED'}"
            for difference, known in self.differences
        )


REPORT = Report()
