"""capsid: Semantic IDs for recommendation, from raw interactions to a served recommender.

Names load on first use, so `import capsid` is quick and torch is imported only when something needs it.

Array names end in their shape, one capital letter per axis. A module may add letters of its own in its docstring:

    B  rows of a batch              K  codes of a depth; items of a ranked list; width of an attention head
    C  width of capsules or of dense item vectors          L  positions of a sequence; depths of an id
    D  width of a vector            M  items of a batch, all histories together
    E  entries or edges of a sparse structure              N  items of a catalogue, or targets
    F  leaves of the trie           P  positions of a timeline
    H  attention heads              R  rows without padding
    I  width of input vectors       S  width of the vectors that score tokens
    T  tokens of an item            U  users of a search
    V  tokens of the vocabulary     W  beams of a user
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Dataset": "capsid.data.dataset",
    "load_dataset": "capsid.data.sources",
    "leave_one_out": "capsid.data.split",
    "ItemTokenizer": "capsid.tokenize.item_tokenizer",
    "SemanticIds": "capsid.ids.semantic_ids",
    "Trie": "capsid.ids.trie",
    "Recipe": "capsid.recipe",
    "Recommender": "capsid.recommender",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'capsid' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
