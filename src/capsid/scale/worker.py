"""`python -m capsid.scale.worker`: reads a job, then shard numbers, and answers each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys

from capsid.scale.jobs import run_shard


def main() -> None:
    """Serve until the input ends."""
    # Whatever a library prints goes to standard error: standard output carries answers only.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        job = sys.stdin.readline().strip()
        for line in sys.stdin:
            answers.write(json.dumps(run_shard(job, int(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
