"""Explains a recommendation: a record of the search, and a picture of it."""
