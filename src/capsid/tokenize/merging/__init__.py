"""SemanticBPE: which neighbouring tokens of an id become one (paper, section on SemanticBPE composition)."""
