"""Tokenizers: from item vectors to codes, and `ItemTokenizer` from items to Semantic IDs."""
