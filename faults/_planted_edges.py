"""Mistakes for `mutants.py` in the command line, the benchmark, the service and explanations. See `_planted.py`."""

from __future__ import annotations

from _mutant import Mistakes

MISTAKES: Mistakes = {
    "bench/cells.py": (
        (
            "a cell's key without seed",
            "fingerprint(_parts(recipe.to_dict()), data, seed, ",
            "fingerprint(_parts(recipe.to_dict()), data, ",
            "bench/test_bench_keys.py",
        ),
    ),
    "bench/prepare.py": (
        (
            "the busiest worker gets the next cell",
            "first = free.index(min(free))",
            "first = free.index(max(free))",
            "bench/test_bench_runner.py bench/test_bench_show.py",
        ),
    ),
    "bench/store.py": (
        (
            "memory of the last attempt only",
            'max(self.kept["peak_memory_mb"], peak_memory_mb())',
            "peak_memory_mb()",
            "bench/test_bench_keys.py",
        ),
    ),
    "bench/plans.py": (
        (
            "plans run in any order",
            "ordered = sorted(cells, key=lambda c: c.priority)",
            "ordered = list(cells)",
            "bench/test_bench_plans.py",
        ),
    ),
    "bench/rows.py": (
        (
            "rows in order of appearance",
            "key=lambda label: known.get(label, len(known)))",
            "key=lambda label: 0)",
            "bench/test_rows.py bench/test_tables.py",
        ),
    ),
    "bench/runner.py": (
        (
            "cells that do not fit the time are begun",
            "self._estimate(p).seconds <= left",
            "self._estimate(p).seconds >= left",
            "bench/test_bench_runner.py",
        ),
    ),
    "bench/table.py": (("ranks from 0", "order.index(mean) + 1 for", "order.index(mean) for", "bench/test_table.py"),),
    "bench/paper_tables.py": (
        ("drops with the wrong sign", "own.mean / full - 1,", "1 - own.mean / full,", "bench/test_tables.py"),
    ),
    "cli/compare.py": (
        (
            "the difference over the wrong run",
            "found.difference / found.second:+.1f",
            "found.difference / found.first:+.1f",
            "cli/test_cli_compare.py",
        ),
    ),
    "cli/input_files.py": (
        (
            "--set before the file",
            "(*(() if config is None else read_settings(config)), *(settings or ()))",
            "(*(settings or ()), *(() if config is None else read_settings(config)))",
            "cli/test_cli_shell.py",
        ),
    ),
    "cli/data.py": (("check ends with 0", "    if not report.ok:\n", "    if report.ok:\n", "data/test_agreement.py"),),
    "cli/main.py": (
        (
            "bad usage ends with 1",
            "        return 2\n",
            "        return 1\n",
            "cli/test_cli_main.py cli/test_cli_bad_input.py",
        ),
    ),
    "cli/output.py": (
        ("ids in quotes that do not end", ", strict=True)", ")", "cli/test_cli_found_by_cases.py"),
        ("² is a number", "part.isascii() and part.isdigit()", "part.isdigit()", "cli/test_cli_odd_values.py"),
        (
            "a file is overwritten unasked",
            "about.st_size and not force",
            "about.st_size and force",
            "cli/test_cli_out.py",
        ),
    ),
    "cli/streams.py": (
        (
            "a closed error stream ends a fit",
            '    def _refused(self, error: OSError | ValueError) -> None:\n        """Ignore',
            '    def _refused_no(self, error: OSError | ValueError) -> None:\n        """Ignore',
            "cli/test_cli_terminal.py",
        ),
    ),
    "cli/tokenizer.py": (
        (
            "known items count as new",
            "if name not in opened.items]",
            "if name in opened.items]",
            "cli/test_cli_tokenizer.py",
        ),
    ),
    "explain/search.py": (
        (
            "influence of the neighbour",
            "steps_URD[0] - steps_URD[place + 1]",
            "steps_URD[0] - steps_URD[place]",
            "recommender/test_explain.py",
        ),
    ),
    "explain/items.py": (
        (
            "rarest merges first",
            "key=lambda use: (-use.taken,",
            "key=lambda use: (use.taken,",
            "cli/test_cli_merges.py",
        ),
    ),
    "fit/folder.py": (
        (
            "other seeds reuse a run",
            'about["seed"] == recommender.seed',
            "True",
            "fit/test_runs.py",
        ),
    ),
    "serve/batching.py": (
        (
            "batches of mixed groups",
            "elif batch and ticket.group != batch[0].group:",
            "elif False:",
            "serve/test_batching.py",
        ),
    ),
    "serve/edge.py": (
        (
            "anybody may edit",
            "or not (self.api or self.admin):",
            "or True:",
            "serve/test_guards.py",
        ),
    ),
    "serve/errors.py": (
        ("retry at once", "wait = max(1, ", "wait = min(0, ", "serve/test_http.py serve/test_guards.py"),
    ),
    "serve/journal.py": (
        (
            "half a line is read",
            'for line in data.split(b"\\n")[:-1]:\n            values',
            'for line in data.split(b"\\n"):\n            values',
            "serve/test_journal.py",
        ),
    ),
    "serve/replay.py": (
        (
            "versions do not count",
            "return self.current.version + 1",
            "return self.current.version",
            "serve/test_live.py serve/test_edits.py",
        ),
    ),
    "serve/live.py": (
        (
            "an edit of another process is lost",
            "if self._now is not before or self._journal.pending:",
            "if False:",
            "serve/test_live.py",
        ),
    ),
    "serve/questions.py": (
        (
            "an exact id is not first",
            "keys[rows == exact] = np.iinfo(np.int64).min",
            "keys[rows == exact] = np.iinfo(np.int64).max",
            "serve/test_http.py serve/test_live.py",
        ),
    ),
    "serve/snapshot.py": (
        (
            "an edit keeps its version",
            "Snapshot(self.version + 1, grown,",
            "Snapshot(self.version, grown,",
            "serve/test_live.py serve/test_edits.py",
        ),
    ),
}
