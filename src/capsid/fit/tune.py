"""Searches settings of a recipe by validation, with Optuna: resumable, and shared by several processes.

study.log  tune.json  best.toml  report.md

Trials are sampled by TPE and pruned where their validation curve stays below the median of the earlier ones. A trial
whose process was killed is taken up again where its training stopped. Nothing here reads the test split. If a recipe
has a memory, its few weights are fitted to the validation cases too.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsid.base.config import fingerprint
from capsid.base.run_options import RunOptions
from capsid.base.storage.artifacts import read_json, write_bytes, write_json
from capsid.base.storage.locks import held
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.errors import ArtifactError, ConfigError
from capsid.fit.ranges import Range
from capsid.progress import Progress
from capsid.recipe import Recipe
from capsid.recommender import Recommender

if TYPE_CHECKING:
    import optuna

# Trials before any is pruned, and validations of a trial before it can be.
STARTUP, WARMUP = 4, 2
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and what they validated; None if the trial was pruned."""

    number: int
    settings: dict[str, float]
    value: float | None


@dataclass(frozen=True)
class Tuned:
    """All trials, the best first, and the file for `--config`."""

    metric: str
    trials: tuple[Trial, ...]
    config: str

    @property
    def best(self) -> Trial:
        """The trial that validated best."""
        return self.trials[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `capsid tune --json` prints them."""
        return asdict(self)


@dataclass(frozen=True)
class Search:
    """What is searched. `settings` are fixed in all trials."""

    recipe: Recipe
    dataset: Dataset
    holdout: Holdout
    ranges: tuple[Range, ...]
    seed: int
    settings: tuple[str, ...]
    metric: str
    progress: Progress

    @property
    def key(self) -> str:
        """Changes with whatever makes trials incomparable."""
        parts = (self.recipe, self.settings, self.seed, self.metric, [asdict(r) for r in self.ranges])
        return fingerprint(*parts, self.dataset.fingerprint, self.holdout.split(self.dataset).fingerprint)

    def run(self, folder: Path, trials: int) -> Tuned:
        """Try settings until there are so many trials, and write what was learnt."""
        folder.mkdir(parents=True, exist_ok=True)
        self._claim(folder / "tune.json")
        study = _study(folder, self.seed)
        import optuna

        State = optuna.trial.TrialState
        while True:
            # One process at a time, so that a trial is never seen without the lock of its process.
            with held(_lock(folder, "next")), contextlib.ExitStack() as own:
                _take_up(study, folder)
                states = [t.state for t in study.get_trials(deepcopy=False)]
                enough = State.WAITING not in states and len(states) - states.count(State.FAIL) >= trials
                trial = None if enough else study.ask()
                if trial is not None:
                    own.enter_context(held(_lock(folder, trial.number)))
                kept = own.pop_all()
            if trial is not None:
                with kept:
                    self._try(study, trial, folder)
            elif State.RUNNING in states:
                # Another process has the last trials; its working folders are still needed.
                time.sleep(POLL_SECONDS)
            else:
                return self._tuned(study, folder)

    def _claim(self, file: Path) -> None:
        """The folder belongs to this search; one of another search is refused."""
        if file.exists() and read_json(file).get("key") != self.key:
            raise ArtifactError(
                f"{file.parent} holds a search with another recipe, data, seed or ranges", hint="choose another --out"
            )
        about = {"key": self.key, "recipe": self.recipe.name, "data": self.dataset.name, "seed": self.seed}
        write_json(file, {**about, "settings": list(self.settings), "ranges": [asdict(r) for r in self.ranges]})

    def _try(self, study: optuna.Study, trial: optuna.Trial, folder: Path) -> None:
        """One trial, from its settings to its value."""
        import optuna

        chosen = {r.name: _suggest(trial, r) for r in self.ranges}
        texts = [f"{path}={chosen[r.name]}" for r in self.ranges for path in r.paths]
        place = folder / "work" / fingerprint(texts)
        shown = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        self.progress.line(f"trial {trial.number}: {shown}")
        try:
            value = self._value(trial, texts, place)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            self.progress.line(f"trial {trial.number}: pruned")
        except BaseException:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(trial.params)
            raise
        else:
            study.tell(trial, value)
            self.progress.line(f"trial {trial.number}: valid {self.metric} {value:.4f}")
        shutil.rmtree(place, ignore_errors=True)

    def _value(self, trial: optuna.Trial, texts: list[str], place: Path) -> float:
        """The metric on all validation cases, history filtered."""
        curve: list[float] = []

        def validated(value: float) -> None:
            curve.append(value)
            trial.report(value, len(curve))
            if trial.should_prune():
                import optuna

                raise optuna.TrialPruned

        # Fixed settings first: those that are tried come after them and win.
        one = Recommender.from_recipe(self.recipe, seed=self.seed, settings=(*self.settings, *texts))
        split = self.holdout.split(self.dataset)
        one.fit(self.dataset, split=split, work=place, progress=self.progress, run=RunOptions(validated=validated))
        return float(one.evaluate("valid", progress=self.progress).metrics[self.metric])

    def _tuned(self, study: optuna.Study, folder: Path) -> Tuned:
        """The trials as values, with the report and the file for `--config`."""
        done = [t for t in study.get_trials(deepcopy=False) if t.state.name in ("COMPLETE", "PRUNED")]
        trials = [Trial(t.number, dict(t.params), t.value if t.state.name == "COMPLETE" else None) for t in done]
        trials.sort(key=lambda t: -1.0 if t.value is None else t.value, reverse=True)
        if not trials or trials[0].value is None:
            raise ConfigError("no trial was finished", hint="raise --trials")
        found = Tuned(self.metric, tuple(trials), str(folder / "best.toml"))
        write_bytes(folder / "best.toml", _toml(self, found.best).encode())
        write_bytes(folder / "report.md", _report(self, found).encode())
        shutil.rmtree(folder / "work", ignore_errors=True)
        return found


def _study(folder: Path, seed: int) -> optuna.Study:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise ConfigError(f"tuning needs the extra `tune`: {error}", hint="pip install 'capsid-rec[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.log")))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)
    study = optuna.create_study(
        storage=storage, study_name="capsid", direction="maximize", pruner=pruner, load_if_exists=True
    )
    # Each process, and each start, draws its own settings.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.get_trials(deepcopy=False)))
    return study


def _take_up(study: optuna.Study, folder: Path) -> None:
    """Trials of processes that have ended are queued again; their training goes on from its checkpoint."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        with held(_lock(folder, trial.number), wait=False) as free:
            if free:
                with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                    study.enqueue_trial(trial.params)


def _lock(folder: Path, name: int | str) -> Path:
    return folder / "locks" / f"{name}.lock"


def _suggest(trial: optuna.Trial, r: Range) -> float:
    if r.whole:
        return trial.suggest_int(r.name, int(r.low), int(r.high), log=r.log)
    # Few digits: the file for --config is read by people.
    return float(f"{trial.suggest_float(r.name, r.low, r.high, log=r.log):.3g}")


def _lines(search: Search, best: Trial) -> Iterator[str]:
    for text in search.settings:
        path, _, fixed = text.partition("=")
        yield f'"{path}" = "{fixed}"'
    for r in search.ranges:
        tried = best.settings[r.name]
        yield from (f'"{path}" = {tried if r.whole else float(f"{tried:.3g}")}' for path in r.paths)


def _toml(search: Search, best: Trial) -> str:
    about = f"# {search.recipe.name} on {search.dataset.name}, valid {search.metric} {best.value:.4f}"
    return "\n".join([about, *_lines(search, best)]) + "\n"


def _report(search: Search, found: Tuned) -> str:
    names = [r.name for r in search.ranges]
    rows = [
        [str(t.number), "pruned" if t.value is None else f"{t.value:.4f}", *(f"{t.settings[n]:.3g}" for n in names)]
        for t in found.trials
    ]
    table = [["trial", f"valid {search.metric}", *names], ["---"] * (2 + len(names)), *rows]
    best = f"`capsid fit {search.recipe.name} --config best.toml` fits the first row."
    body = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return f"# {search.recipe.name} on {search.dataset.name}, seed {search.seed}\n\n{best}\n\n{body}\n"
