"""CapsID (arXiv 2605.05096): capsule routing as the quantizer, sections 3.1 to 3.4 and appendix A.

algorithm.py   Algorithm 1, which everybody runs; reference.py: the same in loops, for one item
settings.py    what the paper leaves open, as values; capsules.py: the parameters
votes.py       Eq. 1 with one pose matrix per depth, or one per capsule
start.py       capsules from the data; objective.py: Eq. 10; stage_one.py, stage_two.py: training
catalogue.py   codes, traces and stop causes of many items; centres.py: one vector per token
inspection.py  what is looked at meanwhile, and plain counts over ids, which select weights
pairs.py       Eq. 9: pairs of tokens; gate.py: which of them merge; beside.py: learnt beside the capsules
semantic_bpe.py  merges as a part of a recipe, learnt from final ids
tokenizer.py   all of it as a part of a recipe

>>> import numpy as np
>>> import torch
>>> from capsid.tokenize.capsules.algorithm import algorithm_one, ends
>>> from capsid.tokenize.capsules.capsules import CapsuleNetwork
>>> from capsid.tokenize.capsules.settings import CapsuleSettings
>>> from capsid.tokenize.capsules.start import start_from_data
>>> settings = CapsuleSettings(codebooks=(8, 8, 8), confidence=0.4, max_sharing=0)
>>> network = CapsuleNetwork(settings, 16, torch.Generator().manual_seed(0)).requires_grad_(False)
>>> x = torch.as_tensor(np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32))
>>> start_from_data(network, x, settings, seed=0)
>>> stop = lambda depth, rows, step: ends(step.confidence_B, step.r_BD.norm(dim=1), 0.4, 0.0)
>>> steps = list(algorithm_one(network.depths, network.enter(x), stop))
>>> len(steps[0][0]), len(steps[-1][0]) < 50
(50, True)
"""
