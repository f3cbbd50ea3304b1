"""`python -m capsid.scale.worker`: reads a job, then shard numbers, and answers each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys

from capsid.scale.jobs import run_shard


def main() -> None:
    """Serve until the input ends, or until nobody reads the answers any more."""
    # Whatever a library prints goes to standard error: standard output carries answers only.
    answers = os.dup(1)
    os.dup2(2, 1)
    job = sys.stdin.readline().strip()
    for line in sys.stdin:
        answer = json.dumps(run_shard(job, int(line))) + "\n"
        try:
            os.write(answers, answer.encode())
        except BrokenPipeError:  # the command was killed; the shard is finished and stays
            return


if __name__ == "__main__":
    main()
