"""A method is a value: which encoder, tokenizer, collision policy, generator, loss terms, decoder and schedule.

No method has a class, trainer or loader of its own. What cannot be said with these parts is a reason to extend a
part, not to add a branch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from capsid.config import Kinds, from_dict, override, to_dict
from capsid.decode.beam import BeamSearch
from capsid.encode.kinds import ENCODERS
from capsid.errors import ConfigError
from capsid.generate.generator import GENERATORS
from capsid.generate.objective import TERMS
from capsid.ids.collisions import COLLISIONS, Bucket
from capsid.tokenize.kinds import TOKENIZERS
from capsid.train.options import Training


@dataclass(kw_only=True, frozen=True)
class Phase:
    """One stretch of training: which parameters learn (shell patterns), under which terms, for how long.

    `retokenize` gives all items new ids before the phase begins, from what the generator has learnt of them; trie and
    labels are rebuilt with them.
    """

    kind: ClassVar[str] = "phase"
    name: str = "generator"
    learns: tuple[str, ...] = ("*",)
    terms: tuple[Any, ...] = ()
    training: Training = field(default_factory=Training)
    retokenize: bool = False


@dataclass(kw_only=True, frozen=True)
class Recipe:
    """`terms` of a phase replace `objective` where given. An empty schedule: nothing to train."""

    name: str
    about: str
    paper: str = ""
    deviations: tuple[str, ...] = ()
    encoder: Any | None = None
    tokenizer: Any
    collisions: Any = field(default_factory=Bucket)
    generator: Any
    objective: tuple[Any, ...] = ()
    decoder: BeamSearch = field(default_factory=BeamSearch)
    schedule: tuple[Phase, ...] = ()

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """A copy with `part.field=value` settings applied."""
        recipe = self
        for setting in settings:
            path, equals, value = setting.partition("=")
            if not equals or not path:
                raise ConfigError(f"{setting!r} is not a setting", hint="write part.field=value")
            recipe = override(recipe, path.strip(), value.strip())
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        out: dict[str, Any] = to_dict(self)
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any], kinds: Kinds | None = None) -> Recipe:
        """The recipe again; `kinds` adds parts that are not ours."""
        recipe: Recipe = from_dict(cls, data, {**KINDS, **(kinds or {})})
        return recipe


KINDS: Kinds = {
    **ENCODERS,
    **TOKENIZERS,
    **COLLISIONS,
    **GENERATORS,
    **TERMS,
    BeamSearch.kind: BeamSearch,
    Training.kind: Training,
    Phase.kind: Phase,
}
