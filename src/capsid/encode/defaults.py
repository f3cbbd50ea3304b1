"""The default item vectors of recommendation recipes."""

from __future__ import annotations

from capsid.encode.collaborative import CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder
from capsid.encode.text import TextEncoder


def default_encoder() -> JoinedEncoder:
    """Text and collaborative vectors, joined with equal weights; items unseen in training are placed by their text."""
    return JoinedEncoder(parts=(TextEncoder(), CollaborativeEncoder()))
