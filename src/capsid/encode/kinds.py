"""The table of encoders by name: files can refer to these classes only. And the default item vectors of recipes."""

from __future__ import annotations

from capsid.encode.factorised import AttributeEncoder, CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder, Views
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.encode.sequence import FieldEncoder, SequenceEncoder
from capsid.encode.text import HashingEncoder, TextEncoder

ENCODERS: dict[str, type] = {
    "attributes": AttributeEncoder,
    "collaborative": CollaborativeEncoder,
    "famae": FieldEncoder,
    "hashing": HashingEncoder,
    "joined": JoinedEncoder,
    "precomputed": PrecomputedEncoder,
    "sasrec": SequenceEncoder,
    "text": TextEncoder,
    "views": Views,
}


def default_encoder() -> JoinedEncoder:
    """Text and collaborative vectors, joined with equal weights; items unseen in training are placed by their text."""
    return JoinedEncoder(parts=(TextEncoder(), CollaborativeEncoder()))
