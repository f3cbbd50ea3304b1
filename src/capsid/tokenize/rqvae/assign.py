"""Settings of the balanced assignment of items to codes in training. Knows no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class Sinkhorn:
    """Codes of a batch by a balanced plan, in training (LC-Rec: Zheng et al. 2023, arXiv 2311.09049).

    A batch much larger than the codebook gives each code many items; one as large as the codebook gives one item each.
    With `catalogue`, the ids of a whole catalogue are balanced too (DIGER: Fu et al. 2026, arXiv 2601.19711).
    """

    kind: ClassVar[str] = "sinkhorn"
    epsilon: float = setting(0.003, "Smoothness of the plan, for distances that span an interval of 2.", above=0)
    iterations: int = setting(50, "Iterations, each over rows and columns.", least=1)
    depths: int = setting(1, "How many depths are balanced, counted from the last.", least=1)
    catalogue: bool = setting(False, "Whether the codes of the fitted catalogue are balanced as well.")

    def __post_init__(self) -> None:
        check_settings(self)
