"""Semantic IDs as data: token layout, merges, collision policies, readings, the trie. NumPy only."""
