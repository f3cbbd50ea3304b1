"""Transformer layers and cross-entropies that encoders and generators share. Knows only vectors."""
