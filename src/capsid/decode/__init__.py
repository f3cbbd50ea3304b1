"""Rankers: from a model and a trie of ids to ranked items."""
