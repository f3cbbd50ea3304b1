"""Loss terms on the codes of an RQ-VAE, beside reconstruction. Settings only; their modules are imported on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from capsid.data.item_table import ItemTable
from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    from capsid.tokenize.rqvae.bound_terms import BoundCodeTerm


class CodeTerm(Protocol):
    """A weighted term of the tokenizer's loss. With weight 0 it is left out altogether."""

    kind: ClassVar[str]
    weight: float

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        """The term for these items, with codebooks of these sizes and this width."""


@dataclass(kw_only=True, frozen=True)
class CollaborativeMatch:
    """Quantised latents find their own item's behaviour vector within the batch (LETTER, arXiv 2405.07314, Eq. 2).

    Scores are plain inner products, so the length of the behaviour vectors sets their temperature. Items without
    behaviour are skipped.
    """

    kind: ClassVar[str] = "collaborative-match"
    weight: float = setting(0.1, "Weight in the tokenizer's loss.", least=0)
    block: str = setting("behaviour", "Name of the vectors to match, as wide as the latent.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        """The term for these items' behaviour; refuses a block of another width or without any behaviour."""
        from capsid.tokenize.rqvae.bound_terms import BoundMatch

        return BoundMatch(table.vectors(self.block), self.block, latent)


@dataclass(kw_only=True, frozen=True)
class CodeDiversity:
    """Each chosen code is pulled towards another code of its group and pushed from all others (LETTER, Eq. 4).

    Groups are clusters of a codebook's vectors, of bounded size and recomputed every epoch.
    """

    kind: ClassVar[str] = "code-diversity"
    weight: float = setting(1e-4, "Weight in the tokenizer's loss.", least=0)
    groups: int = setting(10, "Number of groups per codebook, fewer where a codebook is small.", least=1)
    least: int = setting(10, "Smallest group.", least=2)
    most: int = setting(60, "Largest group, more where the codes do not fit otherwise.", least=2)

    def __post_init__(self) -> None:
        check_settings(self)

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        """The term for codebooks of these sizes."""
        from capsid.tokenize.rqvae.bound_terms import BoundDiversity

        return BoundDiversity(sizes, self.groups, self.least, self.most)
