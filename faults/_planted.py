"""The mistakes that `mutants.py` plants, those of the crash-safe foundation first.

Each is something that a tired person writes: a wrong sign, an off-by-one, a forgotten sort, a check left out.
"""

from __future__ import annotations

import _planted_data
import _planted_edges
import _planted_learning
from _mutant import Mutant, mutants

NOTICED = "noticed/test_planted_mistakes.py"
MUTANTS: tuple[Mutant, ...] = (
    # Those of the issue, which once went unnoticed.
    Mutant(
        "validation reads test cases",
        "fit/schedule.py",
        "split.valid",
        "split.test",
        (f"{NOTICED}::test_validation_never_reads_the_test_cases",),
    ),
    Mutant(
        "balance with the wrong sign",
        "tokenize/capsules/objective.py",
        "return math.log(len(mean_K)) + (mean_K",
        "return math.log(len(mean_K)) - (mean_K",
        (f"{NOTICED}::test_balance_is_least_where_all_capsules_are_used_alike",),
    ),
    Mutant(
        "survival without the residual rule",
        "tokenize/capsules/algorithm.py",
        "(1 - torch.sigmoid(sure)) * (1 - torch.sigmoid(small))",
        "(1 - torch.sigmoid(sure))",
        (f"{NOTICED}::test_an_id_survives_only_where_neither_rule_ends_it",),
    ),
    Mutant(
        "prefix counts of the sample",
        "tokenize/capsules/stage_one.py",
        "encode_catalogue(settings, network, job.vectors_NI)",
        "encode_catalogue(settings, network, job.sample_NI)",
        (f"{NOTICED}::test_prefixes_are_counted_among_all_items",),
    ),
    Mutant(
        "one-sided p-value",
        "evaluate/significance.py",
        "min(1.0, 2 * (tail + 1)",
        "min(1.0, (tail + 1)",
        (f"{NOTICED}::test_a_p_value_has_two_sides",),
    ),
    Mutant(
        "joined key without missing",
        "encode/joined.py",
        "self.dim, self.missing)",
        "self.dim)",
        (f"{NOTICED}::test_every_field_is_in_the_cache_key",),
    ),
    Mutant(
        "joined key without the width of blocks",
        "encode/joined.py",
        "(self.weights, self.block_dim, ",
        "(self.weights, ",
        (f"{NOTICED}::test_every_field_is_in_the_cache_key",),
    ),
    Mutant(
        "precomputed key without missing",
        "encode/precomputed.py",
        "self.kind, self.missing, hashes",
        "self.kind, hashes",
        (f"{NOTICED}::test_what_to_do_with_missing_vectors_is_in_the_cache_key",),
    ),
    Mutant(
        "text key without the cut",
        "encode/text.py",
        "self.model, self.max_tokens, texts",
        "self.model, texts",
        (f"{NOTICED}::test_every_field_is_in_the_cache_key",),
    ),
    Mutant(
        "block means of all rows",
        "encode/joined.py",
        "known_MD = block_ND[has_evidence(block_ND)].astype",
        "known_MD = block_ND.astype",
        (f"{NOTICED}::test_means_of_a_block_are_of_rows_with_evidence",),
    ),
    Mutant(
        "gate logits not in merge order",
        "tokenize/capsules/semantic_bpe.py",
        "self.probability(pairs.logit[rows])",
        "self.probability(pairs.logit[np.sort(rows)])",
        (f"{NOTICED}::test_logits_of_the_gate_follow_the_order_of_the_merges",),
    ),
    Mutant(
        "score before probability",
        "tokenize/capsules/semantic_bpe.py",
        "-pairs.score(self.settings.alpha[1]), -pi])",
        "-pi, -pairs.score(self.settings.alpha[1])])",
        (f"{NOTICED}::test_the_probability_decides_before_the_score",),
    ),
    Mutant(
        "biases not centred",
        "tokenize/capsules/start.py",
        "bias_KC = bias_KC - bias_KC.mean(0)",
        "bias_KC = bias_KC",
        (f"{NOTICED}::test_capsules_start_with_biases_around_zero",),
    ),
    Mutant(
        "store line not fsynced",
        "bench/store.py",
        "        os.fsync(handle)\n",
        "",
        (f"{NOTICED}::test_a_line_of_the_store_is_on_disk_before_it_counts",),
    ),
    Mutant(
        "gzip with a time stamp",
        "data/prepared.py",
        "compresslevel=6, mtime=0)",
        "compresslevel=6)",
        (f"{NOTICED}::test_the_same_data_give_the_same_bytes_at_any_time",),
    ),
    Mutant(
        "optimistic check reversed",
        "bench/check.py",
        'variants["recall@10:optimistic"] >=',
        'variants["recall@10:optimistic"] <=',
        (f"{NOTICED}::test_an_optimistic_reading_is_never_below_the_headline",),
    ),
    Mutant(
        "k-means without the block shape",
        "tokenize/kmeans.py",
        "        padded[: len(part)] = part\n        yield torch.as_tensor(padded), len(part)\n",
        "        yield torch.as_tensor(np.array(part, dtype=np.float32)), len(part)\n",
        (f"{NOTICED}::test_distances_do_not_depend_on_who_else_is_asked",),
    ),
    Mutant(
        "counts of held-out items",
        "data/item_table.py",
        "counted(train.values",
        "counted(dataset.sequences.values",
        (f"{NOTICED}::test_training_counts_leave_out_what_is_held_out",),
    ),
    # Files: nothing is lost, nothing is overwritten.
    Mutant(
        "partial written without truncating",
        "base/storage/artifacts.py",
        "                file.truncate()\n",
        "",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "rename before fsync is skipped",
        "base/storage/artifacts.py",
        "                os.fsync(handle)\n",
        "",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "another kind is replaced",
        "base/storage/artifacts.py",
        "        if standing != kind:\n",
        "        if False:\n",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "replaced without being asked",
        "base/storage/artifacts.py",
        "        if not replace:\n",
        "        if False:\n",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "the old folder is not restored",
        "base/storage/artifacts.py",
        "            os.replace(leftover, path)\n        elif",
        "            pass\n        elif",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "living writers' folders are leftovers",
        "base/storage/artifacts.py",
        "        if lock_handle(handle):\n",
        "        if True:\n",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "symlinks are replaced",
        "base/storage/artifacts.py",
        "    if not path.is_symlink():\n        return path",
        "    if True:\n        return path",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "unlisted files are let in",
        "base/storage/artifacts.py",
        "        if name not in listed:\n",
        "        if False:\n",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "hashes are not compared",
        "base/storage/artifacts.py",
        "(only is None or name in only) and file_hash(path / name) != listed[name]",
        "False",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "parents in a manifest", "base/storage/artifacts.py", ' or ".." in parts', "", ("helpers/test_artifacts.py",)
    ),
    Mutant(
        "special files are let in",
        "base/storage/artifacts.py",
        "elif not stat.S_ISREG(mode):",
        "elif False:",
        ("helpers/test_artifacts.py",),
    ),
    Mutant(
        "a lock that nobody holds",
        "base/storage/locks.py",
        "        if _is_at(handle, path):\n",
        "        if True:\n",
        ("helpers/test_locks.py",),
    ),
    Mutant(
        "a lock file stays",
        "base/storage/locks.py",
        "            path.unlink(missing_ok=True)\n",
        "            pass\n",
        ("helpers/test_locks.py",),
    ),
    Mutant(
        "claims are not compared",
        "base/storage/arrays.py",
        "    if claimed != there:\n",
        "    if False:\n",
        ("helpers/test_arrays.py",),
    ),
    Mutant(
        "compressed arrays are unpacked",
        "base/storage/arrays.py",
        "if any(m.compress_type not in allowed for m in members)",
        "if False",
        ("helpers/test_arrays.py",),
    ),
    Mutant("control characters stay", "base/printable.py", "    *range(0x20),\n", "", ("helpers/test_printable.py",)),
    Mutant("C1 controls stay", "base/printable.py", "    *range(0x7F, 0xA0),\n", "", ("helpers/test_printable.py",)),
    Mutant(
        "weights are not compared",
        "base/blocks/weights.py",
        "        if wanted.get(name) != given.get(name):\n",
        "        if False:\n",
        ("blocks/test_weights.py",),
    ),
    Mutant(
        "NaN weights are taken",
        "base/blocks/weights.py",
        "if not torch.isfinite(tensor).all()",
        "if False",
        ("blocks/test_weights.py",),
    ),
    Mutant(
        "a checkpoint's bytes are not compared",
        "train/checkpoint.py",
        'if tensors_hash(tensors, text) != metadata["sha256"]',
        "if False",
        ("cli/test_cli_out.py", "train/test_checkpoint.py"),
    ),
    Mutant(
        "other k are forgotten",
        "evaluate/kept.py",
        "    return {**old, **{n: v",
        "    return {**{n: v",
        ("cli/test_cli_out.py",),
    ),
    # Data.
    Mutant(
        "separator by width alone",
        "data/table_files.py",
        "return sum(name.strip().lower() in known for name in names), len(names)",
        "return 0, len(names)",
        ("data/test_data_forms.py",),
    ),
    Mutant(
        "months for days", "data/events.py", 'return ["%d/%m/%Y"]', 'return ["%m/%d/%Y"]', ("data/test_data_forms.py",)
    ),
    Mutant(
        "ambiguous dates are guessed",
        "data/events.py",
        "if self.second > 12 >= self.first else []",
        "if self.second >= 0 else []",
        ("data/test_data_forms.py",),
    ),
    Mutant(
        "rows without columns",
        "data/frames.py",
        "    if rest.width:\n",
        "    if True:\n",
        (f"{NOTICED}::test_frames_of_nothing_but_ids",),
    ),
    Mutant(
        "ties by another order",
        "data/frames.py",
        "np.lexsort((times_E, users_E))",
        "np.lexsort((-times_E, users_E))",
        ("data/test_data_tables.py",),
    ),
    Mutant(
        "two items fewer per history",
        "data/split.py",
        "ends = np.where(lengths >= 3, lengths - 2, lengths)",
        "ends = np.where(lengths >= 3, lengths - 1, lengths)",
        ("data/test_data_splits.py",),
    ),
    # Ids, search, metrics.
    Mutant(
        "suffix of another item",
        "ids/layout.py",
        "int(suffixes.max()) >= self.suffix",
        "int(suffixes.max()) > self.suffix",
        ("ids/test_layout.py",),
    ),
    Mutant(
        "codes beyond their codebook",
        "ids/layout.py",
        "codes.values >= sizes[depth]",
        "codes.values > sizes[depth]",
        ("ids/test_layout.py",),
    ),
    Mutant("leaves out of order", "ids/trie.py", "leaves[np.argsort(starts)]", "leaves", ("ids/test_trie.py",)),
    Mutant(
        "merges at twice the speed",
        "ids/merges.py",
        "if self.passes > len(self)",
        "if self.passes >= len(self)",
        ("ids/test_merges.py",),
    ),
    Mutant(
        "a trie of other places",
        "ids/trie.py",
        "        below = (self.first_child[:-1] > np.arange(nodes)).all()\n",
        "        below = True\n",
        ("ids/test_stored_trie.py",),
    ),
    Mutant(
        "k of zero",
        "evaluate/metrics.py",
        "or not 1 <= k <= MOST_K",
        "or not 0 <= k <= MOST_K",
        ("cli/test_cli_odd_values.py",),
    ),
    Mutant(
        "true is a number",
        "evaluate/metrics.py",
        "if isinstance(k, bool) or not",
        "if not",
        ("cli/test_cli_odd_values.py",),
    ),
    # One for every other module with logic, room by room.
    *mutants(_planted_data.MISTAKES, _planted_learning.MISTAKES, _planted_edges.MISTAKES),
)
