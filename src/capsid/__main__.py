"""`python -m capsid` is the command `capsid`. Ctrl-C is heard also while the command is still being imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry of the command `capsid`."""
    try:
        from capsid.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
