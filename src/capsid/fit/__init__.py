"""Fits recipes: the schedule of one fit, and folders of runs and tokenizers that are fitted, reused or refitted."""
