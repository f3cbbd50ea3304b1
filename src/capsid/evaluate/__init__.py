"""Metrics per user, significance tests, and reports on ids."""
