"""`python -m capsid` runs the command `capsid`. Ctrl-C also works while the command is still being imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command `capsid`."""
    try:
        from capsid.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
