"""SemanticBPE: which neighbouring tokens of an id become one (CapsID, arXiv 2605.05096, section 3.3)."""
