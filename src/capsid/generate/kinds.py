"""All generators and loss terms by kind."""

from __future__ import annotations

from capsid.generate.alternating import Alternating
from capsid.generate.dense_match import DenseMatch
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.generator import (
    MaskedGenerator,
    PopularityGenerator,
    SasRecGenerator,
    TimelineGenerator,
    TransformerGenerator,
)
from capsid.generate.gumbel_codes import GumbelCodes
from capsid.generate.next_token import NextToken
from capsid.generate.parallel import AllCodes, ParallelGenerator
from capsid.generate.routing_adapters import RoutingAdapters
from capsid.generate.similar_items import EaseGenerator, ItemKnnGenerator, VectorKnnGenerator

GENERATORS: dict[str, type] = {
    g.kind: g
    for g in (
        TransformerGenerator,
        SasRecGenerator,
        TimelineGenerator,
        EncoderDecoderGenerator,
        MaskedGenerator,
        ParallelGenerator,
        PopularityGenerator,
        ItemKnnGenerator,
        EaseGenerator,
        VectorKnnGenerator,
    )
}
TERMS: dict[str, type] = {t.kind: t for t in (NextToken, AllCodes, DenseMatch)}
# Terms that learn beside the generator for a part of a phase.
JOINT_TERMS: dict[str, type] = {t.kind: t for t in (RoutingAdapters, GumbelCodes, Alternating)}
