"""CapsID: capsule routing as the quantizer (paper, sections 3.1 to 3.5)."""
