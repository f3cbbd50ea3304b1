"""Item -> vector: text, hashed text, collaborative, attributes, a user's own matrix, and several of them joined.

Import the module you need; this package file stays empty so that naming an encoder loads nothing heavy.
"""
