"""Mistakes for `mutants.py` in data, ids, search, metrics and the foundation. See `_planted.py`."""

from __future__ import annotations

from _mutant import Mistakes

MISTAKES: Mistakes = {
    "answering.py": (
        (
            "history is not excluded",
            "np.concatenate([history, deny]) if query.filter_history",
            "deny if query.filter_history",
            "recommender/test_answering.py",
        ),
        (
            "popular items lose excluded places",
            "order[: query.k + len(excluded)]",
            "order[: query.k]",
            "recommender/test_answering.py",
        ),
    ),
    "base/config.py": (
        (
            "a setting changes the next element",
            "(*part[:i], new, *part[i + 1 :])",
            "(*part[: i + 1], new, *part[i + 2 :])",
            "helpers/test_config.py",
        ),
        (
            "equal values differ",
            "if left.get(p) != right.get(p)}",
            "if left.get(p) == right.get(p)}",
            "helpers/test_config.py",
        ),
        ("another kind under the name", "if own != kind:", "if False:", "recommender/test_outside_parts.py"),
    ),
    "data/amazon.py": (
        (
            "ratings equal to the least are dropped",
            "rating >= min_rating",
            "rating > min_rating",
            "data/test_data_amazon.py",
        ),
        (
            "a wrong checksum is accepted",
            ".split()[:1] != [file_hash(path)]",
            ".split()[:1] == [file_hash(path)]",
            "data/test_data_amazon.py",
        ),
    ),
    "data/attributes.py": (
        (
            "numbers beyond 64 bits",
            "abs(value) < 2**63",
            "abs(value) < 2**65",
            "data/test_data_check.py",
        ),
    ),
    "data/augment.py": (
        (
            "pieces end too early",
            "rng.integers(0, lengths - kept + 1)",
            "rng.integers(0, np.maximum(lengths - kept, 1))",
            "data/test_augment.py",
        ),
        (
            "pieces overlap by two",
            "np.maximum(stop - history - 1, 0)",
            "np.maximum(stop - history - 2, 0)",
            "data/test_pieces.py",
        ),
    ),
    "data/check.py": (
        (
            "the worst comes last",
            "key=lambda f: ORDER[f.severity])",
            "key=lambda f: -ORDER[f.severity])",
            "data/test_data_check.py",
        ),
    ),
    "data/dataset.py": (
        (
            "empty lists count as values",
            "filled &= series.list.len() > 0",
            "filled &= series.list.len() >= 0",
            "data/test_data_dataset.py data/test_data_tables.py data/test_data_check.py",
        ),
        (
            "items of the core need one more",
            "counts_U >= k, counts_I >= k",
            "counts_U >= k, counts_I > k",
            "data/test_data_dataset.py data/test_data_splits.py data/test_data_cli.py data/test_data_tables.py",
        ),
    ),
    "data/fields.py": (
        ("rare values are known", "if count >= field.least)))", "if count >= 1)))", "data/test_fields.py"),
    ),
    "data/findings.py": (
        (
            "one error too many",
            "more = self.errors - 1",
            "more = self.errors",
            "data/test_data_check.py data/test_data_tables.py",
        ),
        (
            "the last line without its end is lost",
            "        yield number + 1, rest\n",
            "        return\n",
            "data/test_data_prepared.py data/test_data_forms.py data/test_data_check.py",
        ),
    ),
    "data/planted.py": (
        (
            "walks jump a step",
            "here_U = walks_UL[:, step - 1]",
            "here_U = walks_UL[:, max(step - 2, 0)]",
            "data/test_data_planted.py",
        ),
    ),
    "data/prepared.py": (
        (
            "descending times pass",
            "if pair[1] < pair[0]), None)",
            "if pair[1] < pair[0] - 1e9), None)",
            "data/test_agreement.py",
        ),
        ("times of another user", "if user != wanted.encode():", "if False:", "data/test_data_prepared.py"),
    ),
    "data/sources.py": (
        (
            "data and interactions together",
            "(data is None) == (interactions is None)",
            "data is None and interactions is None",
            "cli/test_cli_odd_values.py",
        ),
    ),
    "data/tables.py": (
        (
            "not a line readable",
            "    if not block.frame.width:\n",
            "    if block.frame.width < 0:\n",
            "data/test_data_forms.py",
        ),
    ),
    "decode/exact.py": (
        (
            "padding is scored",
            "torch.where(tokens_UW == PAD, torch.zeros(()), here_UW)",
            "here_UW",
            "decode/test_likelihood.py decode/test_last_step.py decode/test_beam.py",
        ),
    ),
    "decode/filters.py": (
        (
            "allow list reversed",
            "_among(self.listed, slots) == self.only_listed",
            "_among(self.listed, slots) != self.only_listed",
            "decode/test_retrieve.py decode/test_beam.py",
        ),
        (
            "first tokens of which all items are seen stay open",
            "left_C[child] > counts",
            "left_C[child] >= counts",
            "decode/test_retrieve.py",
        ),
    ),
    "decode/fusion.py": (
        (
            "leaves beyond the end are scored",
            "torch.as_tensor(leaves.leaves_UF >= 0)",
            "torch.as_tensor(leaves.leaves_UF >= -1)",
            "decode/test_fusion.py",
        ),
    ),
    "decode/ranked.py": (
        ("one item too many", "kept = rank < k", "kept = rank <= k", "decode/test_beam.py decode/test_retrieve.py"),
        (
            "empty histories are searched",
            "histories.lengths.min() < 1",
            "histories.lengths.min() < 0",
            "decode/test_retrieve.py recommender/test_answering.py",
        ),
    ),
    "decode/watch.py": (
        (
            "depths shifted",
            "levels[depth + 1].node if depth + 1 < len(levels)",
            "levels[depth].node if depth + 1 < len(levels)",
            "recommender/test_explain.py",
        ),
    ),
    "errors.py": (
        ("hints without the nearest", "n=3, cutoff=0.5)", "n=3, cutoff=1.0)", "helpers/test_progress_rng.py"),
    ),
    "evaluate/evaluator.py": (
        (
            "the wrong tier",
            "tiers[targets] == t for t, name",
            "tiers[targets] >= t for t, name",
            "evaluate/test_evaluator.py",
        ),
        (
            "the last users only",
            "np.linspace(0, len(cases) - 1,",
            "np.linspace(len(cases) - 1, len(cases) - 1,",
            "evaluate/test_positions.py",
        ),
    ),
    "evaluate/merge_report.py": (
        (
            "unmerged pairs count",
            "chosen = pairs.merge >= 0",
            "chosen = pairs.merge >= -1",
            "tokenize/merging/test_semantic_bpe.py",
        ),
    ),
    "evaluate/tokenizer_quality.py": (
        (
            "items without vectors count",
            "known = norms_N > 0",
            "known = norms_N >= 0",
            "evaluate/test_tokenizer_quality.py",
        ),
    ),
    "ids/assignment.py": (
        (
            "transposed costs",
            "costs_NK if rows <= columns else costs_NK.T",
            "costs_NK if rows < columns else costs_NK.T",
            "ids/test_assignment.py",
        ),
        ("epsilon multiplies", "_scaled(costs_NK) / epsilon", "_scaled(costs_NK) * epsilon", "ids/test_sinkhorn.py"),
    ),
    "ids/collisions.py": (
        (
            "no room for more suffixes",
            "return 1 << (2 * need - 1).bit_length()",
            "return need",
            "ids/test_semantic_ids.py recommender/test_new_items.py",
        ),
        (
            "all rows count as twins",
            "> ROUNDING * np.ptp(costs_MK)",
            "> np.ptp(costs_MK)",
            "ids/test_reassign.py",
        ),
    ),
    "ids/mixtures.py": (
        ("weights are not renormalised", "raised / raised.sum(2, keepdims=True)", "raised", "ids/test_mixtures.py"),
    ),
    "ids/order.py": (
        (
            "prefixes sort after",
            "lengths[order[1:]] > lengths[order[:-1]]",
            "lengths[order[1:]] >= lengths[order[:-1]]",
            "ids/test_order.py",
        ),
    ),
    "ids/reading.py": (
        (
            "one token too many",
            "np.arange(width)[None, :] < lengths[:, None]",
            "np.arange(width)[None, :] <= lengths[:, None]",
            "ids/test_reading.py ids/test_lesson.py",
        ),
    ),
    "ids/semantic_ids.py": (
        ("empty ids pass", "codes.lengths.min() < 1:", "codes.lengths.min() < 0:", "ids/test_semantic_ids.py"),
    ),
    "base/popularity.py": (
        (
            "the head misses its last item",
            "order[: int(reached.argmax()) + 1]",
            "order[: int(reached.argmax())]",
            "helpers/test_popularity.py",
        ),
    ),
    "progress.py": (
        (
            "escape codes in notebooks",
            'if notebook else "\\r\\x1b[2K"',
            'if False else "\\r\\x1b[2K"',
            "helpers/test_progress_rng.py",
        ),
    ),
    "ragged.py": (
        (
            "offsets one short",
            "np.zeros(len(lengths) + 1, dtype=np.int64)",
            "np.zeros(max(len(lengths), 1), dtype=np.int64)",
            "helpers/test_ragged.py",
        ),
    ),
    "recipe.py": (
        (
            "dense terms with any generator",
            "if self.dense is not None and not isinstance(",
            "if False and not isinstance(",
            "recommender/test_dense.py recommender/test_recipes.py",
        ),
    ),
    "recommender.py": (
        (
            "answers of an old catalogue",
            "self._answerer is None or self._answerer[0] != now",
            "self._answerer is None",
            "recommender/test_new_items.py recommender/test_recommender_contract.py",
        ),
    ),
    "base/randomness.py": (
        (
            "children of a seed are alike",
            "[str(seed), *map(str, purpose)]",
            "[str(seed)]",
            "helpers/test_progress_rng.py",
        ),
    ),
    "settings.py": (
        ("the least value is refused", "value >= self.least)", "value > self.least)", "helpers/test_settings.py"),
        ("numbers beyond 64 bits", "-(2**63) <= value < 2**63", "True", "helpers/test_settings.py"),
    ),
    "stored.py": (
        (
            "retired items are forgotten",
            '"retired": sorted(catalogue.retired)',
            '"retired": []',
            "recommender/test_recommender_contract.py recommender/test_answering.py recommender/test_new_items.py",
        ),
    ),
    "base/storage/untrusted.py": (
        (
            "numbers beyond the table",
            "<= int(array.max()) < below:",
            "<= int(array.max()) <= below:",
            "ids/test_stored_trie.py",
        ),
    ),
    "base/vocabulary.py": (
        (
            "an id twice",
            "for row in self.repeats()[:1]:",
            "for row in self.repeats()[:0]:",
            "helpers/test_vocabulary.py",
        ),
        (
            "unknown ids stay",
            'found[found >= 0] if missing == "drop"',
            'found if missing == "drop"',
            "helpers/test_vocabulary.py",
        ),
    ),
    "data/events.py": (
        ("dates of days and months swapped", 'return ["%d/%m/%Y"]', 'return ["%m/%d/%Y"]', "data/test_data_forms.py"),
        ("late blocks do not count", "self.whole + other.whole", "self.whole", "data/test_streaming.py"),
    ),
    "data/table_files.py": (
        ("UTF-16 without its mark", 'return "utf-16-le"\n', "return None\n", "data/test_data_forms.py"),
        (
            "rows are cut inside quotation marks",
            "% 2 == 0:\n            return end + 1",
            "% 2 < 2:\n            return end + 1",
            "data/test_streaming.py",
        ),
    ),
    "data/streaming.py": (
        (
            "texts with one hash are one",
            "found[rows[hit]] = numbers[hit]",
            "found[rows] = numbers",
            "data/test_streaming.py",
        ),
        (
            "rows change their order in a partition",
            'np.argsort(parts, kind="stable")',
            "np.argsort(parts)[::-1]",
            "data/test_streaming.py",
        ),
    ),
    "data/columns.py": (
        (
            "tabs in ids",
            "return bool(text) and text == text.strip() and not any(c in text for c in NOT_IN_IDS)",
            "return bool(text)",
            "data/test_data_prepared.py data/test_agreement.py",
        ),
    ),
    "base/storage/artifacts.py": (
        (
            "a pipe is read as a manifest",
            "if not (path / MANIFEST).is_file():",
            "if not (path / MANIFEST).exists():",
            "cli/test_cli_found_by_cases.py",
        ),
        (
            "links to themselves",
            "  # The target may be yet to be written.\n        os.stat(path)\n",
            "\n        pass\n",
            "cli/test_cli_found_by_cases.py",
        ),
    ),
}
