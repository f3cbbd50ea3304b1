"""Item encoders: text, hashed text, collaborative, attributes, a user's own matrix, and joined encoders.

Import the module you need. This package file stays empty so that importing one encoder loads nothing heavy.
"""
