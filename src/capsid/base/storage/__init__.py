"""Folders that are complete or absent, locks, arrays, Parquet, and checks on files from elsewhere."""
