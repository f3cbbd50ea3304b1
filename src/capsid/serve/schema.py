"""Bodies of requests and answers. Strict: numbers in quotes, 0 for false and misspelt fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints

from capsid.explain.picture import Influence, ScoreParts, Step

MOST_K, MOST_HISTORY, MOST_LISTED, MOST_HISTORIES, MOST_ADDED = 500, 2_000, 10_000, 64, 1_000

# Any text that is valid in a URL and in a JSON file; no control characters.
ItemId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


def _whole(value: Any) -> Any:
    """5.0 is a whole number in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bounds come before the validator: after it they would not reach the OpenAPI document.
Count = Annotated[int, Field(ge=1, le=MOST_K), BeforeValidator(_whole)]
Token = Annotated[int, Field(ge=0, le=10**9), BeforeValidator(_whole)]
Shown = Annotated[int, Field(ge=0, le=5_000), BeforeValidator(_whole)]
Version = Annotated[int, Field(ge=1), BeforeValidator(_whole)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Asked(_Body):
    k: Count = Field(10, description="How many items.")
    filter_history: bool = Field(True, description="Leave out the items of the history.")
    allow: list[ItemId] | None = Field(None, max_length=MOST_LISTED, description="Only these items.")
    deny: list[ItemId] = Field(default_factory=list, max_length=MOST_LISTED, description="None of these items.")
    unknown: Literal["drop", "raise"] = Field(
        "drop", description="Item ids that the catalogue does not have: left out and listed, or an error."
    )


class RecommendRequest(_Asked):
    """A history of item ids, oldest first."""

    history: list[ItemId] = Field(max_length=MOST_HISTORY)


class ExplainRequest(RecommendRequest):
    """A history, and optionally the tokens that ids must begin with."""

    prefix: list[Token] = Field(default_factory=list, max_length=64)
    influence: bool = Field(True, description="Measure influence by leaving out each item of the history in turn.")
    shown: Shown = Field(50, description="Cut prefixes listed at each depth; counts are always complete.")


class BatchRequest(_Asked):
    """Several histories with the same options. Each takes a place in the queue; the rate limit counts one request."""

    histories: list[Annotated[list[ItemId], Field(max_length=MOST_HISTORY)]] = Field(
        min_length=1, max_length=MOST_HISTORIES
    )


class NewItem(BaseModel):
    """An item as in items.jsonl: its id and any attributes that the run's items have."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, JsonValue]
    item_id: ItemId


class AddRequest(_Body):
    """New items; they can be recommended as soon as the answer arrives."""

    items: list[NewItem] = Field(min_length=1, max_length=MOST_ADDED)


class RollbackRequest(_Body):
    """Go back to an earlier version; null means the one before."""

    version: Version | None = None


class RankedItem(BaseModel):
    """An item of an answer. `score` is a log-probability."""

    item: str
    title: str
    score: float


class RecommendAnswer(BaseModel):
    """Items best first. `personal` is false if the history has no known item and popular items are returned."""

    items: list[RankedItem]
    personal: bool
    unknown: list[str]
    version: int


class ExplainedItem(RankedItem):
    """An item of an answer with the tokens of its id, and the parts of its score if it has two."""

    tokens: list[int]
    parts: ScoreParts | None = None


class HistoryItem(BaseModel):
    """An item of a history; one that the catalogue does not have has its id as title."""

    item: str
    title: str
    known: bool


class ExplainAnswer(BaseModel):
    """An answer and the search behind it."""

    history: list[HistoryItem]
    items: list[ExplainedItem]
    personal: bool
    version: int
    prefix: list[int]
    steps: list[Step]
    influences: list[Influence]


class RunAnswer(BaseModel):
    """What one run recommends; `problem` says why it could not answer."""

    run: str
    recipe: str
    items: list[RankedItem]
    personal: bool
    problem: str | None


class CompareAnswer(BaseModel):
    """What every run recommends after one history, the served one first."""

    history: list[HistoryItem]
    runs: list[RunAnswer]


class Metric(BaseModel):
    """Mean over the test users, and its standard error."""

    mean: float
    error: float


class Difference(BaseModel):
    """A run minus the served one over the same test users: paired bootstrap with a 95 % interval."""

    difference: float
    low: float
    high: float
    p: float


class ListedRun(BaseModel):
    """A run. Metrics are null where it was not evaluated, differences where the users are others."""

    run: str
    served: bool
    recipe: str
    dataset: str
    seed: int
    items: int
    metrics: dict[str, dict[str, Metric] | None]
    differences: dict[str, dict[str, Difference] | None]


class RunsAnswer(BaseModel):
    """The served run first."""

    runs: list[ListedRun]


class BatchAnswer(BaseModel):
    """One answer per history, in order; all from one version."""

    results: list[RecommendAnswer]


class EditAnswer(BaseModel):
    """The version that contains the edit, and the edited items."""

    version: int
    items: list[str]


class ItemAnswer(BaseModel):
    """An item with its id's meaning; more fields where the tokenizer can tell more."""

    model_config = ConfigDict(extra="allow")
    item: str
    title: str
    retired: bool
    attributes: dict[str, Any]


class FoundItem(BaseModel):
    """An item that a search found."""

    item: str
    title: str
    retired: bool


class ItemsAnswer(BaseModel):
    """The first items that match, and how many do."""

    items: list[FoundItem]
    total: int


class DescribedPrefix(BaseModel):
    """A prefix of ids: how many items are below it, what their titles share, how alike they are, and some of them."""

    token: int | None
    prefix: list[int]
    codes: list[int]
    items: int
    taken: int = Field(description="Interactions with these items in training.")
    leaf: bool
    words: list[str] = Field(description="Words and categories that these items share more than by chance.")
    similarity: float | None = Field(description="Mean cosine of pairs of their vectors; null without vectors.")
    examples: list[FoundItem] = Field(description="The most popular ones.")


class TreeChild(DescribedPrefix):
    """A prefix one token longer, with children of its own where more levels were asked for."""

    total_children: int
    children: list[TreeChild] = Field(default_factory=list)


class TreeAnswer(DescribedPrefix):
    """A prefix of ids, the shorter ones on the way to it, and a page of its children, the largest first."""

    path: list[DescribedPrefix]
    offset: int
    children: list[TreeChild]
    total_children: int


class HistoryAnswer(BaseModel):
    """A history of the test split, oldest item first, and the item that was held out."""

    number: int
    total: int
    history: list[FoundItem]
    next: FoundItem


class Health(BaseModel):
    """The health of the service."""

    status: str


class InfoAnswer(BaseModel):
    """What is served."""

    model_config = ConfigDict(extra="allow")
    service: str
    package: str
    recipe: str
    dataset: str
    items: int
    retired: int
    version: int
    versions: list[int]
    limits: dict[str, float]


class ErrorDetail(BaseModel):
    """What went wrong, and what to do about it."""

    code: str
    message: str
    hint: str | None
    request_id: str


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail
