"""Ids that encode only the popularity of an item, with the shared generator."""

from __future__ import annotations

from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Bucket
from capsid.recipe import Phase, Recipe
from capsid.tokenize.frequency import Frequency

FREQUENCY = Recipe(
    name="frequency",
    about="Ids from the training-count bucket and the rank inside it; Transformer over items and depths; beam search",
    paper="A row of the tables of CapsID (arXiv 2605.05096), which does not define it",
    deviations=("our definition: log-count bucket, then the digits of the rank, so ids do not collide",),
    tokenizer=Frequency(),
    collisions=Bucket(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)
