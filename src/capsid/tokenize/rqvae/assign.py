"""How training assigns items to codes where it does not take the nearest. A value; knows no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class Sinkhorn:
    """Codes of a batch by a balanced plan, in training only (LC-Rec: Zheng et al. 2023, arXiv 2311.09049).

    A batch much larger than the codebook leaves many items to a code; one as large as the codebook forces one each.
    """

    kind: ClassVar[str] = "sinkhorn"
    epsilon: float = setting(0.003, "Smoothness of the plan, for distances that span an interval of 2.", above=0)
    iterations: int = setting(50, "Iterations, each over rows and columns.", least=1)
    depths: int = setting(1, "How many depths are balanced, counted from the last.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
