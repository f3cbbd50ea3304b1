"""Wrong usage in our words: what the option parser refuses becomes a `ConfigError` with the rule, the value and a hint.

The parser is click, which typer vendors in a module that differs by version, so its errors are told apart by the names
of their classes. Knows no verb and no option.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperGroup

from capsid.errors import ConfigError, nearest
from capsid.settings import short

# A word of the parser's message -> what a value must be.
RULES = {"integer": "a whole number", "number": "a number", "float": "a number"}


class Commands(TyperGroup):
    """A group of commands; an unknown one is an error that names similar ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with."""
        known = self.list_commands(ctx)
        # While the shell completes a line, nothing is an error; an option has an error of its own.
        if not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in known:
            raise ConfigError(f"there is no command {short(args[0])}", hint=nearest(args[0], known))
        return super().resolve_command(ctx, args)


def is_usage_error(error: Exception) -> bool:
    """Whether the option parser raised it."""
    return hasattr(error, "format_message")


def usage_error(error: Any) -> ConfigError:
    """An error of the option parser as one of ours."""
    kind = type(error).__name__
    if kind == "BadOptionUsage":
        return _wrong_form(error)
    if kind == "NoSuchOption":
        options = [name for param in error.ctx.command.params for name in (*param.opts, *param.secondary_opts)]
        hint = nearest(error.option_name, (name for name in options if name.startswith("-")))
        return ConfigError(f"there is no option {short(error.option_name)}", hint=hint)
    if kind == "MissingParameter":
        return ConfigError(f"{_name(error)} must be given", hint=_help(error))
    rule = next((rule for word, rule in RULES.items() if word in error.message), None)
    if kind == "BadParameter" and rule is not None:
        return ConfigError(f"{_name(error)} must be {rule}, got {_value(error)}", hint=_help(error))
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message, re.DOTALL)
    if extra:
        return ConfigError(f"too many arguments: {short(extra[1])} is not expected", hint=_help(error))
    return ConfigError(error.format_message(), hint=_help(error))


def _wrong_form(error: Any) -> ConfigError:
    """An option without its value, or with one that it does not take."""
    name = error.option_name
    if "not take" in error.message:
        return ConfigError(f"{name} takes no value", hint=f"write {name} alone")
    return ConfigError(f"{name} needs a value", hint=f"write {name} VALUE")


def _name(error: Any) -> str:
    """The option or argument, which the parser's message quotes first."""
    quoted = re.search(r"'([^']+)'", error.format_message())
    return quoted[1] if quoted else str(error.param.name)


def _value(error: Any) -> str:
    """What was given: in the error of the library that checks values or, in older versions, in the message."""
    reasons = getattr(error.__cause__, "errors", None)
    if reasons is not None:
        return short(reasons()[0]["input"])
    quoted = re.match(r"'(.*)' is not", error.message, re.DOTALL)
    return short(quoted[1] if quoted else error.message)


def _help(error: Any) -> str:
    """What the option is for, and where all of them are explained."""
    about = getattr(getattr(error, "param", None), "help", None)
    help_of = f"`{error.ctx.command_path if getattr(error, 'ctx', None) else 'capsid'} --help`"
    return f"{about} See {help_of}." if about else f"see {help_of}"
