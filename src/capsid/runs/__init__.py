"""Folders of fitted things, from Python as on the command line: fit into one or reuse it, open it, add items to it."""
