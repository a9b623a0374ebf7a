"""What a campaign found: counts, seeds, and how to meet each failure again."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Part:
    title: str
    seed: int
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def count(self, problem: str, where: str) -> None:
        self.cases += 1
        if problem:
            self.failures.append(f"{problem} — {where}")
            print(f"{self.title}: {self.failures[-1]}", file=sys.stderr, flush=True)
        elif self.cases % 50 == 0:
            print(f"{self.title}: {self.cases} cases", file=sys.stderr, flush=True)


def page(parts: Sequence[Part], minutes: float, command: str) -> str:
    import torch

    import codanet

    failures = sum(len(part.failures) for part in parts)
    lines = [
        "# Campaign",
        "",
        f"{sum(part.cases for part in parts)} cases, {failures} failures, in {minutes:.1f} minutes. `{command}`, "
        f"{datetime.date.today()}, codanet {codanet.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} processors.",
        "",
        "| part | cases | failures | seed |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {part.title} | {part.cases} | {len(part.failures)} | {part.seed} |" for part in parts),
    ]
    for part in parts:
        lines += ["", f"## {part.title}", ""]
        lines += [f"- {name}: {fact}" for name, fact in part.facts.items()]
        lines += [f"- **failure**: {failure}" for failure in part.failures]
    return "\n".join(lines) + "\n"
