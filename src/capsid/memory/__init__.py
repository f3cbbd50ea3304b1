"""A memory of followers and similar items, beside any network or alone: learnt bonuses for a handful of weights."""
