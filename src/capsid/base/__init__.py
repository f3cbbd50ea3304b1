"""The foundation: knows nothing about recommendation."""
