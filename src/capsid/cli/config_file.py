"""Settings from a TOML file: the same fields as in `--set`, with tables instead of dotted names.

[tokenizer]
codebooks = [64, 64, 64]
[[schedule]]
training = { steps = 5000 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capsid.errors import ConfigError


def all_settings(config: Path | None, settings: Sequence[str] | None) -> tuple[str, ...]:
    """`part.field=value` texts: the file's come first, so that `--set` overrides them."""
    return (*(() if config is None else read_settings(config)), *(settings or ()))


def read_settings(path: Path) -> tuple[str, ...]:
    """The settings of a file, as `--set` takes them."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="--config takes a TOML file") from None
    except (ValueError, RecursionError) as error:  # broken TOML or UTF-8, numbers of 5,000 digits, deep nesting
        raise ConfigError(
            f"{path} is not valid TOML: {error}", hint='write [tokenizer] and codebooks = "64,64"'
        ) from None
    return tuple(f"{name}={_text(value)}" for name, value in _leaves(content, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a list of tables is numbered."""
    tables = isinstance(value, list) and any(isinstance(v, dict) for v in value)
    if not isinstance(value, dict) and not tables:
        yield name, value
        return
    # The kind of a part comes first: it decides which fields the other settings can name.
    pairs = sorted(value.items(), key=lambda p: p[0] != "kind") if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        if key == "kind" and name:
            yield name, child
        else:
            yield from _leaves(child, f"{name}.{key}" if name else str(key))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
