"""Generators, which score tokens, and the loss terms that they are trained with."""
