"""CapsID: capsule routing as the quantizer (arXiv 2605.05096, sections 3.1 to 3.5)."""
