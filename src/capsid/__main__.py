"""`python -m capsid` is the command `capsid`."""

from capsid.cli.main import main

main()
