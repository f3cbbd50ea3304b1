"""The vectors that recipes for recommendation start from."""

from __future__ import annotations

from capsid.encode.collaborative import CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder
from capsid.encode.text import TextEncoder


def default_encoder() -> JoinedEncoder:
    """Text joined with collaborative, equally weighted; items unseen in training are placed by their text."""
    return JoinedEncoder(parts=(TextEncoder(), CollaborativeEncoder()))
