"""`capsid completion`: a script that lets the shell complete verbs, options and their values."""

from __future__ import annotations

from typing import Annotated

import typer

from capsid.cli.options import single_verb
from capsid.cli.output import say
from capsid.errors import ConfigError

app = single_verb()
# The variable that the completion script sets; Typer derives it from the name of the program.
VARIABLE = "_CAPSID_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SHELLS)}.")],
) -> None:
    """Print a completion script for your shell; the script asks `capsid` for the candidates.

    Examples:

      eval "$(capsid completion bash)"

      capsid completion zsh > ~/.zfunc/_capsid

      capsid completion fish > ~/.config/fish/completions/capsid.fish
    """
    from typer.completion import get_completion_script

    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for {shell!r}", hint=f"allowed: {', '.join(SHELLS)}")
    say(get_completion_script(prog_name="capsid", complete_var=VARIABLE, shell=shell))
