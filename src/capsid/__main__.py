"""`python -m capsid` runs the command `capsid`. Ctrl-C also works while the command is still being imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command `capsid`."""
    try:
        from capsid.cli.interrupts import Interrupts

        interrupts = Interrupts()
        interrupts.listen()
        from capsid.cli.main import run

        code = run(sys.argv[1:], interrupts)
        interrupts.ignore()
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        code = 130
    # Python would end `python -m capsid` by SIGINT if Ctrl-C came inside an `exec`, even though it was caught.
    # Another `exec` resets that.
    exec("")
    sys.exit(code)


if __name__ == "__main__":
    main()
