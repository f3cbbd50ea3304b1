"""capsid: Semantic IDs for recommendation, from raw interactions to a served recommender.

Names load on first use, so `import capsid` is quick and torch is imported only when something needs it.

Array names end in their shape, one capital letter per axis. docs/architecture.md ("Shape letters") says what each
letter means; a module that needs others explains them in its docstring.
"""

from __future__ import annotations

# Nothing is imported here: Ctrl-C would end `capsid` with a traceback until `capsid.__main__` runs.
TYPE_CHECKING = False
if TYPE_CHECKING:
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
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
