"""Mistakes for `mutants.py` in blocks, encoders, tokenizers, generators and training. See `_planted.py`."""

from __future__ import annotations

from _mutant import Mistakes

MISTAKES: Mistakes = {
    "base/blocks/attention.py": (
        (
            "empty positions count as one",
            "[:, None, None, None].to(k.dtype).log()",
            "[:, None, None, None].to(k.dtype).mul(0)",
            "blocks/test_packed.py",
        ),
    ),
    "base/blocks/cross_entropy.py": (
        (
            "smoothing not shared among children",
            "(smoothing / torch.bincount(row_E, minlength=count))[row_E]",
            "(smoothing / torch.ones(count))[row_E]",
            "generate/test_children_loss.py",
        ),
        (
            "gradient of the target without smoothing",
            "alpha=smoothing - 1)",
            "alpha=-1)",
            "blocks/test_cross_entropy.py",
        ),
        (
            "shares of the target not divided by their group",
            "= shares_E / sums_CG[pairs]",
            "= shares_E",
            "generate/test_soft_target.py",
        ),
        (
            "places of used columns from 1",
            "used_V.cumsum(0) - 1",
            "used_V.cumsum(0)",
            "decode/test_likelihood.py",
        ),
    ),
    "base/blocks/packed.py": (
        ("kept values are not scaled up", "keep.mul_(256 / (256 - threshold))", "keep", "blocks/test_dropout.py"),
        (
            "rows placed as if the sequences were in order",
            "slots_R = order_B[rows.row_numbers] * width + rows.values",
            "slots_R = rows.row_numbers * width + rows.values",
            "blocks/test_packed.py",
        ),
    ),
    "base/blocks/layers.py": (
        (
            "attention over own keys left out",
            ".softmax(-1)\n",
            ".sigmoid()\n",
            "blocks/test_layers.py generate/test_network.py",
        ),
    ),
    "encode/factorised.py": (
        (
            "values that all items have",
            "MIN_ITEMS <= n < len(table)",
            "MIN_ITEMS <= n <= len(table)",
            "encode/test_attributes.py",
        ),
        (
            "pairs across users",
            "(row_of[:-distance] == row_of[distance:]) & (near != far)",
            "near != far",
            "encode/test_collaborative.py",
        ),
        (
            "signs are not fixed",
            "np.arange(columns_DR.shape[1])] < 0, -1.0, 1.0)",
            "np.arange(columns_DR.shape[1])] < 0, 1.0, 1.0)",
            "encode/test_linalg.py",
        ),
    ),
    "encode/base.py": (
        (
            "zero rows count as evidence",
            "np.any(vectors_ND != 0, axis=1)",
            "np.any(vectors_ND == vectors_ND, axis=1)",
            "encode/test_base.py",
        ),
    ),
    "encode/cache.py": (
        (
            "cached vectors are never used",
            "    if found is not None:\n",
            "    if found is None and False:\n",
            "encode/test_cache.py",
        ),
    ),
    "encode/text.py": (
        (
            "idf upside down",
            "np.log((1 + len(table)) / (1 + found_B))",
            "np.log((1 + found_B) / 1.0)",
            "encode/test_text.py encode/test_contract.py",
        ),
    ),
    "encode/large_vectors.py": (
        (
            "rows of another part",
            "self.vectors_ND[start:stop])",
            "self.vectors_ND[: stop - start])",
            "cli/test_cli_vectors.py",
        ),
    ),
    "encode/precomputed.py": (
        ("vectors of other widths", "np.flatnonzero(lengths != width)", "lengths[:0]", "encode/test_precomputed.py"),
        (
            "vectors of new items are not kept",
            "np.concatenate([old_ND, vectors_ND[new]])",
            "np.concatenate([old_ND, vectors_ND[: len(new)]])",
            "encode/test_precomputed.py",
        ),
        (
            "widths are not compared",
            "if vectors_ND.shape[1] != old_ND.shape[1]:",
            "if vectors_ND.shape[1] < 0:",
            "cli/test_cli_own_vectors.py",
        ),
    ),
    "encode/networks.py": (
        (
            "padding is learnt",
            "< torch.as_tensor(lengths_B)[:, None]",
            "<= torch.as_tensor(lengths_B)[:, None]",
            "encode/test_sequence.py",
        ),
    ),
    "encode/joined.py": (
        ("two views of one name", "or names.count(name) > 1:", "or names.count(name) > 2:", "encode/test_views.py"),
    ),
    "generate/dense_match.py": (
        (
            "temperature multiplies",
            "prepared.vectors_UC.T / self.temperature",
            "prepared.vectors_UC.T * self.temperature",
            "generate/test_dense_match.py",
        ),
    ),
    "generate/fit.py": (
        (
            "pieces of other lengths weigh more",
            "int((items.lengths - 1).sum()) / usual if weighted",
            "usual / int((items.lengths - 1).sum()) if weighted",
            "generate/test_fit_generator.py",
        ),
    ),
    "generate/joint_rivals.py": (
        (
            "crowded codes get no noise",
            "(use_K * len(use_K) > self.settings.ratio)",
            "(use_K * len(use_K) < self.settings.ratio)",
            "generate/test_gumbel_codes.py",
        ),
    ),
    "generate/timeline.py": (
        (
            "no room for the mask",
            "self._read(tokens_UL, masked_UL, lengths_U + 1, extra_ULD)",
            "self._read(tokens_UL, masked_UL, lengths_U, extra_ULD)",
            "generate/test_masked.py",
        ),
    ),
    "generate/network.py": (
        (
            "padding is read",
            "[None, :] < lengths_U[:, None]",
            "[None, :] <= lengths_U[:, None]",
            "generate/test_network.py",
        ),
        ("closing rows for all", "if not self.closing:", "if self.closing:", "generate/test_dense_match.py"),
    ),
    "generate/next_token.py": (
        (
            "loss over nodes not averaged",
            "return sum(others, first) / len(found.targets.values)",
            "return sum(others, first)",
            "generate/test_children_loss.py",
        ),
    ),
    "generate/open_items.py": (
        (
            "repeats end a token early",
            "stride, self.lengths_UP == depth + 1)[0].unique()",
            "stride, self.lengths_UP == depth)[0].unique()",
            "generate/test_repeats.py",
        ),
    ),
    "generate/shape.py": (
        (
            "merged vectors twice as long",
            '"scales_M1": 1 / roots[:, None]',
            '"scales_M1": 2 / roots[:, None]',
            "generate/test_token_table.py",
        ),
    ),
    "tokenize/rivals/lookup.py": (
        (
            "unknown items get the last id",
            "if (numbers < 0).any():",
            "if (numbers < -1).any():",
            "tokenize/test_tokenizer_contract.py tokenize/test_item_tokenizer.py",
        ),
        (
            "too few digits",
            "if self.codebook**d >= ranks)",
            "if self.codebook**d >= ranks // 2)",
            "tokenize/test_frequency.py",
        ),
    ),
    "tokenize/kmeans.py": (
        (
            "items that fit no cluster go to the fullest",
            "else room_K.argmax()",
            "else room_K.argmin()",
            "tokenize/test_balanced.py",
        ),
    ),
    "tokenize/capsules/catalogue.py": (
        ("prefixes that two items share end", "counts[which_R] == 1", "counts[which_R] <= 2", "tokenize/capsules"),
    ),
    "tokenize/capsules/settings.py": (
        (
            "one round fewer",
            "return cls(rounds, True, True, True, True, False)",
            "return cls(rounds - 1, True, True, True, True, False)",
            "tokenize/capsules",
        ),
    ),
    "tokenize/rivals/quantisers.py": (
        (
            "fields from the wrong side",
            "out.positions < len(self.fields)",
            "out.positions <= len(self.fields)",
            "tokenize/test_chained.py",
        ),
        (
            "the same seed at every depth",
            "self.restarts, seed + depth)",
            "self.restarts, seed)",
            "tokenize/test_residual_kmeans.py golden",
        ),
    ),
    "tokenize/capsules/pairs.py": (
        ("rare pairs are merged", "kept = counts >= least", "kept = counts >= 0", "tokenize/merging"),
    ),
    "tokenize/capsules/gate.py": (
        (
            "noise is not Gumbel's",
            "-torch.empty(shape).exponential_().clamp_min(1e-30).log()",
            "torch.empty(shape).exponential_().clamp_min(1e-30).log()",
            "tokenize/merging",
        ),
    ),
    "tokenize/rivals/rqvae_terms.py": (
        ("behaviour of any width", "if behaviour_ND.shape[1] != latent:", "if False:", "tokenize/rqvae"),
    ),
    "tokenize/rivals/rqvae_network.py": (
        (
            "scale multiplies",
            "return (x_BI - self.mean) / self.scale",
            "return (x_BI - self.mean) * self.scale",
            "tokenize/rqvae",
        ),
    ),
    "scale/shards.py": (
        (
            "finished shards are made again",
            "if read_about(file) == about:",
            "if False:",
            "cli/test_cli_vectors.py",
        ),
    ),
    "ids/order.py": (
        (
            "prefixes at the bound are shared",
            "keys[counts > max_sharing]",
            "keys[counts >= max_sharing]",
            "tokenize/test_stopping.py",
        ),
    ),
    "tokenize/training.py": (
        (
            "the best are revived",
            'return np.argsort(-error_N, kind="stable")',
            'return np.argsort(error_N, kind="stable")',
            "tokenize/test_training.py tokenize/rqvae",
        ),
    ),
    "train/batches.py": (
        (
            "batches of any length",
            'part = part[np.argsort(self.lengths[part], kind="stable")]',
            "part = part",
            "train/test_batches.py",
        ),
    ),
    "train/loop.py": (
        (
            "patience from the start",
            "if p.step > max(self.best_step, self._selects_from)]",
            "if p.step >= 0]",
            "train/test_loop.py",
        ),
        ("a loss that is no number", "if not math.isfinite(loss):", "if False:", "train/test_loop.py"),
    ),
    "train/options.py": (
        (
            "warm-up without steps",
            "warm = max(1, round(self.warmup * self.steps))",
            "warm = max(1, round(self.warmup))",
            "train/test_options.py",
        ),
    ),
    "train/checkpoint.py": (
        (
            "the worst snapshots are kept",
            "sum(metric <= snapshot.metric for",
            "sum(metric >= snapshot.metric for",
            "train/test_snapshots.py",
        ),
    ),
    "base/blocks/weights.py": (
        (
            "torch's compiler is loaded",
            'with torch.device("meta"), _NoValues():',
            'with torch.device("meta"):',
            "recommender/test_no_training_code.py",
        ),
    ),
}
