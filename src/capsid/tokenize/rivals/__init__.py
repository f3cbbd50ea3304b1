"""Tokenizers that other people published, and simple ones to compare with."""
