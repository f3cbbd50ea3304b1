"""Interactions and items: readers, filters and splits."""
