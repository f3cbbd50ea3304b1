"""Folders of fitted runs and tokenizers, for Python and the command line: fit or reuse one, open it, add items."""
