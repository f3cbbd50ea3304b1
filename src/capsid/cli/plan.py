"""`capsid plan`: estimates time, memory and disk of a large job by stage, before it is started."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.options import single_verb
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.errors import ConfigError

if TYPE_CHECKING:
    from capsid.scale.plan import Plan

app = single_verb()

UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}
# Interactions per user where the number of users is not given: those of the industrial data of CapsID's paper.
PER_USER = 38


@app.command()
def plan(
    items: Annotated[str, typer.Option("--items", help="Items of the catalogue, such as 35.8M.")],
    interactions: Annotated[str, typer.Option("--interactions", help="Interactions, such as 331M or 1B.")],
    users: Annotated[str, typer.Option("--users", help="Users; by default one for every 38 interactions.")] = "",
    codes: Annotated[int, typer.Option("--codes", help="Codes per depth (K).")] = 256,
    depth: Annotated[int, typer.Option("--depth", help="Most codes per item (L).")] = 4,
    dim: Annotated[int, typer.Option("--dim", help="Width of the item vectors.")] = 128,
    workers: Annotated[int, typer.Option("--workers", help="Processes of one thread, or GPUs.")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda (speed assumed, not measured).")] = "cpu",
    text: Annotated[
        str, typer.Option("--text", help="minilm: compute text vectors; own: you have vectors.")
    ] = "minilm",
    generator: Annotated[str, typer.Option("--generator", help="timeline or encoder-decoder.")] = "timeline",
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs of training.")] = 1,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine first (half a minute).")] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate time, memory and disk of every stage of a large job, and its bottleneck. Runs nothing.

    Rates are those of one thread of an AMD EPYC, measured in processor time; --measure replaces them by this machine's.

    Examples:

      capsid plan --items 35.8M --interactions 331M --users 8.6M --codes 1024 --depth 6 --workers 64

      capsid plan --items 3.58M --interactions 33M --text own --workers 2 --json

      capsid plan --items 1M --interactions 1B --generator encoder-decoder --device cuda --workers 4
    """
    from capsid.scale.plan import Rates, Workload, make_plan

    rates = Rates()
    number = parse_count(interactions, "--interactions")
    work = Workload(
        items=parse_count(items, "--items"),
        interactions=number,
        users=parse_count(users, "--users") if users else -(-number // PER_USER),
        codes=codes,
        depth=depth,
        dim=dim,
        workers=workers,
        device=device,
        text=text,
        generator=generator,
        epochs=epochs,
    )
    if measure:
        from capsid.scale.measure import measured

        rates = measured()
    made = make_plan(work, rates)
    if as_json:
        print_json({**made.to_dict(), "rates": dataclasses.asdict(rates), "rates_of_this_machine": measure})
    else:
        _show(made)


def parse_count(text: str, option: str) -> int:
    """A number such as 1200, 35.8M or 1B."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    number, unit = (plain[:-1], UNITS[plain[-1]]) if plain[-1:] in UNITS else (plain, 1.0)
    if not number.replace(".", "", 1).isdecimal() or not number.isascii() or len(number) > 20:
        raise ConfigError(f"{option} must be a number, got {text[:40]!r}", hint="such as 1200, 35.8M or 1B")
    count = round(float(number) * unit)
    if not 1 <= count <= 10**13:
        raise ConfigError(f"{option} must be from 1 to 10,000B, got {text[:40]}", hint="such as 35.8M")
    return count


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def _show(made: Plan) -> None:
    from capsid.progress import duration

    columns = ("stage", "time", "workers", "processor hours", "memory", "disk")
    print_table(
        columns,
        [
            (
                stage.name + (" *" if stage.assumed else ""),
                duration(stage.seconds),
                stage.workers,
                f"{stage.processor_seconds / 3600:,.1f}",
                _size(stage.memory_bytes),
                _size(stage.disk_bytes),
            )
            for stage in made.stages
        ],
    )
    share = made.bottleneck.seconds / made.seconds
    say(f"together {duration(made.seconds)}, at most {_size(made.memory_bytes)} memory, {_size(made.disk_bytes)} disk")
    say(f"bottleneck: {made.bottleneck.name}, {100 * share:.0f} % of the time")
    if any(stage.assumed for stage in made.stages):
        say("* GPU speed is assumed, not measured")
