"""`capsid evaluate`: metrics of a run; per-user values are stored in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.options import Device, FilterHistory, single_verb
from capsid.cli.output import AsJson, parse_ks, print_json, print_table, say
from capsid.errors import ArtifactError
from capsid.evaluate.metrics import LIST_METRICS, METRICS
from capsid.progress import Console, duration

if TYPE_CHECKING:
    from capsid.evaluate.evaluator import Evaluation

app = single_verb()


def _metrics_help() -> str:
    """One line per metric."""
    lines = ["Metrics at every K:", *(f"  {m.name + '@K':<12}{m.about}" for m in METRICS.values())]
    lines += ["Metrics at the largest K:", *(f"  {m.name + '@K':<12}{m.about}" for m in LIST_METRICS.values())]
    # \b keeps the lines as they are.
    return "\b\n" + "\n".join(lines)


@app.command(epilog=_metrics_help())
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    k: Annotated[str, typer.Option("-k", metavar="K,K", help="List lengths to score.")] = "5,10",
    filter_history: FilterHistory = True,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Rank the whole catalogue for every held-out case. Per-user values go to RUN/evaluations/.

    Values stored there for other k are kept.

    Examples:

      capsid evaluate runs/films

      capsid evaluate runs/films --no-filter-history -k 5,10,20 --json

      capsid evaluate runs/films --split valid
    """
    ks = parse_ks(k)
    from capsid.base.devices import choose
    from capsid.evaluate.kept import keep_evaluation
    from capsid.recommender import Recommender

    progress = Console()
    recommender = Recommender.from_pretrained(run, device=str(choose(device)))
    result = recommender.evaluate(split, ks=ks, filter_history=filter_history, progress=progress)
    progress.line(f"{result.users:,} users in {duration(result.seconds)}")
    try:
        keep_evaluation(run, result, recommender.catalogue_.split.cases(split))
    except ArtifactError as error:
        progress.line(f"per-user values were not stored: {error}")
    if as_json:
        print_json({**result.summary(), "order": recommender.catalogue_.order})
    else:
        _show(result)


def _show(result: Evaluation) -> None:
    filtered = "history filtered" if result.filter_history else "history not filtered"
    say(f"{result.split}: {result.users:,} users, {filtered}")
    rows = []
    for k in result.ks:
        rows.append([k, *(result.metrics[f"{name}@{k}"] for name in METRICS)])
    print_table(["k", *(m.label for m in METRICS.values())], rows)
    top = max(result.ks)
    exposure, by_tier = result.extras[f"exposure@{top}"], result.extras[f"recall@{top}_by_tier"]
    users, warmth = result.extras["users_by_tier"], result.extras["by_warmth"]
    print_table(
        ["items", "users with such a target", f"Recall@{top}", "share of list places"],
        [[tier, users[tier], by_tier[tier], exposure[tier]] for tier in exposure],
    )
    if warmth["cold"]["cases"]:
        shown = [f"recall@{top}", f"ndcg@{top}"]
        rows = [[kind, found["cases"], *(found.get(m) for m in shown)] for kind, found in warmth.items()]
        print_table(["target", "cases", f"Recall@{top}", f"NDCG@{top}"], rows)
    for name, metric in LIST_METRICS.items():
        value = result.extras[f"{name}@{top}"]
        if isinstance(value, float):
            say(f"{name}@{top}: {value:.1%} ({metric.about})")
    say(f"first code among the best 50: {result.extras['code_recall@50']:.1%}")
