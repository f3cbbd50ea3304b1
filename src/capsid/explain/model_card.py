"""The model card of a run: README.md with YAML front matter, as model hubs show it.

Recipe, data, metrics with intervals if they were measured, sizes of ids, settings, how to load, limits. Names come from
data and are untrusted: front matter holds JSON strings only, and in the text they are escaped, so that no name can add
a heading, a link or HTML. The card holds no time and no path, so the same run has the same card.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import capsid
from capsid.base.printable import json_text, one_line
from capsid.evaluate.evaluator import Evaluation
from capsid.stored import Stored

NAME = "README.md"
TAGS = ["recommendation", "semantic-ids", "generative-recommendation"]
# Hubs make links of www.example.com too.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>&~$@:-]|(?<=www)\.)", re.IGNORECASE)
# A normal approximation: there are thousands of users, and each has one value.
_Z = 1.96


def model_card(run: Stored, evaluations: Sequence[Evaluation] = ()) -> str:
    """The text of README.md."""
    rows = [("seed", str(run.seed)), ("capsid", capsid.__version__), ("phases", str(len(run.fitted.log)))]
    sections = [
        _front(run, evaluations),
        f"# {escaped(run.recipe.name)} on {escaped(run.catalogue.name)}\n\n{escaped(run.recipe.about, 1000)}",
        _LOADING,
        _data(run),
        _metrics(evaluations),
        _ids(run),
        "## Training\n\n" + _table(("", ""), rows),
        # Strings of JSON hold no line breaks, so no line of theirs can end the block.
        f"## Settings\n\n```json\n{json_text(run.recipe.to_dict(), indent=2)}\n```",
        _LIMITS,
    ]
    return "\n\n".join(sections) + "\n"


def escaped(text: str, most: int = 200) -> str:
    """Text from data for Markdown: one line, nothing in it is markup."""
    return _MARKUP.sub(r"\\\1", one_line(text[:most]))


def _front(run: Stored, evaluations: Sequence[Evaluation]) -> str:
    # JSON is YAML; ASCII, because YAML takes some other characters for line breaks.
    values: dict[str, Any] = {"library_name": "capsid-rec", "tags": TAGS}
    if evaluations:
        results = [
            {
                "task": {"type": "recommendation", "name": "Next item, whole catalogue ranked"},
                "dataset": {"name": run.catalogue.name, "type": "interactions", "split": _shown_split(e)},
                "metrics": [{"type": name, "value": round(value, 5)} for name, value in e.metrics.items()],
            }
            for e in evaluations
        ]
        values["model-index"] = [{"name": f"{run.recipe.name} on {run.catalogue.name}", "results": results}]
    lines = [f"{name}: {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["---", *lines, "---"])


_LOADING = """## How to load

Install the package (`pip install capsid-rec`), then, with the path of this folder:

```python
from capsid import Recommender

recommender = Recommender.from_pretrained("this-folder")
recommender.recommend(["item id", "item id"], k=10)
```

On the command line: `capsid recommend FOLDER --history ID,ID -k 10`, `capsid serve FOLDER`. Loading checks the hash of
every file, this card included, and never unpickles anything."""


def _data(run: Stored) -> str:
    catalogue = run.catalogue
    split = catalogue.split
    rows = [
        ("dataset", escaped(catalogue.name)),
        ("fingerprint of the dataset", escaped(catalogue.fingerprint)),
        ("order of equal times", escaped(catalogue.order)),
        ("items", f"{len(catalogue.items):,}"),
        ("users", f"{len(catalogue.users):,}"),
        ("training interactions", f"{len(split.train.values):,}"),
        ("split", escaped(split.kind)),
        ("attributes of items", escaped(", ".join(catalogue.attributes.columns)) or "none"),
    ]
    return "## Data\n\n" + _table(("", ""), rows)


def _metrics(evaluations: Sequence[Evaluation]) -> str:
    if not evaluations:
        return "## Metrics\n\nNot measured when this card was written. `capsid evaluate FOLDER` measures them."
    rows = [
        (_shown_split(e), f"{e.users:,}", name, f"{value:.4f}", _interval(e.values.get(name)))
        for e in evaluations
        for name, value in e.metrics.items()
    ]
    text = "The whole catalogue is ranked for every user. Intervals (95 %) are over users, not over seeds."
    return f"## Metrics\n\n{text}\n\n" + _table(("split", "users", "metric", "value", "95 % interval"), rows)


def _shown_split(evaluation: Evaluation) -> str:
    return evaluation.split + (", history filtered" if evaluation.filter_history else "")


def _interval(values: np.ndarray | None) -> str:
    if values is None or len(values) < 2:
        return "-"
    mean, half = float(values.mean()), _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return f"{max(mean - half, 0.0):.4f} to {mean + half:.4f}"


def _ids(run: Stored) -> str:
    """Sizes that the run has: those of a recipe are made smaller for small data, and there may be fewer codes still."""
    layout = run.fitted.tokenizer.ids.layout
    rows = [
        ("codes at each depth", _listed(layout.sizes)),
        ("tokens that tell colliding items apart", f"{layout.suffix:,}"),
        ("merged tokens", f"{len(layout.merges):,}"),
    ]
    for number, other in enumerate(layout.others, start=2):
        rows += [(f"codes of id {number} at each depth", _listed(other.sizes))]
    return "## Ids\n\n" + _table(("", ""), rows)


def _listed(sizes: Sequence[int]) -> str:
    return " x ".join(f"{size:,}" for size in sizes)


_LIMITS = """## Limits

- It knows the items of its catalogue and items added to it; other ids in a history are ignored or refused.
- It learnt from past interactions and repeats their biases: popular items are recommended more often than they deserve.
- Scores are log-probabilities of this model, comparable within one list, not across models.
- Nothing was checked about the content of items; filter what must not be shown with `deny`, or retire it."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *others = ("| " + " | ".join(row) + " |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])
