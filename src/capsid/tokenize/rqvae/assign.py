"""How training assigns items to codes where it does not take the nearest. A value; knows no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class Sinkhorn:
    """Codes of a batch by a balanced plan, in training (LC-Rec: Zheng et al. 2023, arXiv 2311.09049).

    A batch much larger than the codebook leaves many items to a code; one as large as the codebook forces one each.
    With `catalogue`, the ids of a whole catalogue are found in this way too (DIGER: Fu et al. 2026, arXiv 2601.19711).
    """

    kind: ClassVar[str] = "sinkhorn"
    epsilon: float = setting(0.003, "Smoothness of the plan, for distances that span an interval of 2.", above=0)
    iterations: int = setting(50, "Iterations, each over rows and columns.", least=1)
    depths: int = setting(1, "How many depths are balanced, counted from the last.", least=1)
    catalogue: bool = setting(False, "Whether the codes of the fitted catalogue are balanced as well.")

    def __post_init__(self) -> None:
        check_settings(self)
