"""Merges of codes inside items and across neighbouring items (ActionPiece)."""
