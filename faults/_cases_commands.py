"""Unusual arguments, ids and paths on the command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _cases import Answer, Case, World, capsid, checked

HUGE = "9" * 5_000
LONG = "x" * 300
ESCAPE = "\x1b[31m"
COUNTS = ("0", "-1", "1.5", "²", "ten", "", " ", str(2**63), str(10**20), HUGE, "1e3", "\u0661", "nan", "0x10")
IDS = (
    "no-such",
    "I0",
    "x" * 128_000,
    LONG,
    f"{ESCAPE}i0",
    "i0\x00",
    "i0;i1",
    "i0 i1",
    "東",
    "\u202ei0",
    "-1",
    "''",
    "i\u00b2",
    "\udcff",
    "i0,no-such",
    '"i0',
    "null",
    "0",
)
FINE = ("i0", "i0,i1", "i0\ni1", " i0 , i1 ", '"i0"', "i0,,i1", "i0,i0", "", ",", "\n", "i17")
RUNS = ("no/such/run", "", ".", "/dev/null", "/proc/self/mem", f"{LONG}", f"no{ESCAPE}", "\x00", "~nobody", "/")
DATA = ("", "no-such", "movie", "/dev/null", LONG, f"{ESCAPE}x", "\x00", ".", "/etc/hostname", "amazon-beauty ")
Command = Callable[[World], list[object]]


def _run(group: str, name: str, command: Command, **more: Any) -> Case:
    return Case(group, name, lambda w: capsid(*command(w)), **more)


# Verb -> its arguments up to the odd one, which comes last.
COUNTED: dict[str, Command] = {
    "recommend -k": lambda w: ["recommend", w.run, "--history", "i0", "-k"],
    "predict -k": lambda w: ["predict", w.run, "--out", "-", "-k"],
    "evaluate -k": lambda w: ["evaluate", w.run, "-k"],
    "facets -k": lambda w: ["tokenizer", "facets", w.capsules, "-k"],
    "facets --depth": lambda w: ["tokenizer", "facets", w.capsules, "--depth"],
    "merges --top": lambda w: ["tokenizer", "merges", w.capsules, "--top"],
    "import --k-core": lambda w: ["data", "import", w.shop, "--out", w.fresh() / "new", "--k-core"],
    "vectors encode --shard-rows": lambda w: [
        "vectors",
        "encode",
        w.run,
        "--vectors",
        "no.npy",
        "--out",
        w.fresh() / "new",
        "--shard-rows",
    ],
    "fit --checkpoint-every": lambda w: [
        "fit",
        "popularity",
        "--data",
        "no such",
        "--out",
        w.fresh() / "new",
        "--checkpoint-every",
    ],
    "fit --seed": lambda w: ["fit", "popularity", "--data", "no such", "--out", w.fresh() / "new", "--seed"],
}
NAMED: dict[str, Command] = {
    "recommend --history": lambda w: ["recommend", w.run, "-k", 3, "--history"],
    "recommend --allow": lambda w: ["recommend", w.run, "--history", "i0", "-k", 3, "--allow"],
    "recommend --deny": lambda w: ["recommend", w.run, "--history", "i0", "-k", 3, "--deny"],
    "popular --history": lambda w: ["recommend", w.popular, "-k", 3, "--history"],
    "inspect": lambda w: ["tokenizer", "inspect", w.run],
    "inspect capsules": lambda w: ["tokenizer", "inspect", w.capsules],
}
OPENED: dict[str, Command] = {
    "evaluate": lambda w: ["evaluate"],
    "recommend": lambda w: ["recommend", "--history", "i0"],
    "predict": lambda w: ["predict", "--out", "-"],
    "report": lambda w: ["tokenizer", "report"],
    "facets": lambda w: ["tokenizer", "facets"],
    "merges": lambda w: ["tokenizer", "merges"],
    "export": lambda w: ["tokenizer", "export", "--out", "-"],
    "add": lambda w: ["tokenizer", "add", "--items", w.items, "--out", w.fresh() / "new"],
    "compare": lambda w: ["compare", w.run],
}
LOADED: dict[str, Command] = {
    "describe": lambda w: ["data", "describe"],
    "check": lambda w: ["data", "check"],
    "import": lambda w: ["data", "import", "--out", w.fresh() / "new"],
    "fit": lambda w: ["fit", "popularity", "--out", w.fresh() / "new", "--data"],
    "tokenizer fit": lambda w: ["tokenizer", "fit", "rq-kmeans", "--out", w.fresh() / "new", "--data"],
}
OTHERS: dict[str, list[Command]] = {
    "words": [
        lambda w, t=t: t
        for t in (
            ["no-such"],
            ["fitt"],
            ["--no-such"],
            ["fit"],
            ["fit", "--help="],
            ["recommend"],
            ["data", "no-such"],
            ["tokenizer", "no"],
            ["bench", "no"],
            ["bench", "run"],
            ["recipes", "show", "no"],
            ["recipes", "diff", "tiger"],
            ["recipes", "diff", "tiger", "no"],
            ["completion", "dos"],
            ["completion"],
            ["fit", "no", "--data", "x", "--out", "y"],
            [f"{ESCAPE}"],
            ["\x00"],
            ["²"],
            ["fit", "tiger", "tiger", "--data", "x", "--out", "y"],
            [LONG],
            ["serve"],
            ["serve", "no-such"],
            ["explore", "no-such"],
            ["compare"],
            ["evaluate"],
            ["--quiet"],
        )
    ],
    "splits": [lambda w, s=s: ["evaluate", w.run, "--split", s] for s in ("", "train", "TEST", ESCAPE, LONG)],
    "splits of predict": [lambda w, s=s: ["predict", w.run, "--out", "-", "--split", s] for s in ("", "train", "all")],
    "ks": [lambda w, k=k: ["evaluate", w.run, "-k", k] for k in ("5,", ",5", "5,,10", "5;10", "5 10", "1,0", "5,-1")],
    "parts": [
        lambda w, p=p: ["vectors", "encode", w.run, "--vectors", "no.npy", "--out", w.fresh() / "n", "--part", p]
        for p in ("", "1", "0/0", "2/1", "a/b", "1/2/3", "-1/2", "1/0")
    ],
    "vectors": [
        lambda w, v=v: ["fit", "rq-kmeans", "--data", w.shop, "--out", w.fresh() / "n", "--vectors", v]
        for v in ("", "no.npy", ".", "/dev/null", LONG, "\x00", f"{ESCAPE}.npy")
    ],
    "configs": [
        lambda w, t=t: _config(w, t)
        for t in (
            "x",
            "= 1",
            "[tokenizer",
            "tokenizer = 3",
            "[no.such]\nx=1",
            "[generator]\nwidth='wide'",
            "\x00",
            "[[schedule]]\nx=1",
            "[generator]\nwidth=-1",
            "[tokenizer]\nkind='no'",
            "[schedule]\n0=1",
            "generator=[1,2]",
            "x=" + HUGE,
            "a.b.c.d=1",
        )
    ],
    "config files": [
        lambda w, f=f: ["fit", "tiger", "--data", "x", "--out", "y", "--config", f]
        for f in ("no.toml", "", ".", LONG, "\x00")
    ],
    "items": [
        lambda w, f=f: ["tokenizer", "add", w.run, "--out", w.fresh() / "n", "--items", f]
        for f in ("no.csv", "", ".", "/dev/null", LONG, "x.txt", "\x00")
    ],
}
# Commands that work, whatever else is said.
WORK: dict[str, Command] = {
    "--version": lambda w: ["--version"],
    "--help": lambda w: ["--help"],
    "--quiet fit": lambda w: ["--quiet", "fit", "popularity", "--data", w.shop, "--out", w.fresh() / "new"],
    "recipes list": lambda w: ["recipes", "list"],
    "recipes show": lambda w: ["recipes", "show", "capsid", "--json"],
    "recipes diff": lambda w: ["recipes", "diff", "capsid", "tiger"],
    "data list": lambda w: ["data", "list", "--json"],
    "describe": lambda w: ["data", "describe", w.shop],
    "check": lambda w: ["data", "check", w.shop],
    "evaluate": lambda w: ["evaluate", w.run, "--json"],
    "evaluate more than the items": lambda w: ["evaluate", w.run, "-k", "5,1000"],
    "recommend more than the items": lambda w: ["recommend", w.run, "--history", "i0", "-k", 10_000],
    "inspect": lambda w: ["tokenizer", "inspect", w.capsules, "i0"],
    "report": lambda w: ["tokenizer", "report", w.capsules, "--json"],
    "facets": lambda w: ["tokenizer", "facets", w.capsules],
    "merges": lambda w: ["tokenizer", "merges", w.capsules],
    "export": lambda w: ["tokenizer", "export", w.run, "--out", "-"],
    "encode": lambda w: ["tokenizer", "encode", w.run, "--items", w.items],
    "add": lambda w: ["tokenizer", "add", w.run, "--items", w.items, "--out", w.fresh() / "new"],
    "compare": lambda w: ["compare", w.run, w.popular],
    **{f"completion {shell}": lambda w, s=shell: ["completion", s] for shell in ("bash", "zsh", "fish")},
    **{
        f"{verb} --help": lambda w, v=verb: [*v.split(), "--help"]
        for verb in (
            "demo",
            "data",
            "data check",
            "data import",
            "recipes show",
            "fit",
            "evaluate",
            "compare",
            "predict",
            "recommend",
            "tokenizer",
            "tokenizer fit",
            "tokenizer add",
            "vectors fit",
            "bench run",
            "serve",
            "explore",
            "completion",
            "doctor",
        )
    },
}


def cases() -> Iterator[Case]:
    """All of them."""
    for verb, command in COUNTED.items():
        for value in COUNTS:
            name = f"{verb} {value[:20]!r}"
            yield _run("counts", name, lambda w, c=command, v=value: [*c(w), v])
    for verb, command in NAMED.items():
        for value in IDS:
            yield _run("ids", f"{verb} {value[:20]!r}", lambda w, c=command, v=value: [*c(w), v])
        for value in FINE if "--history" in verb else FINE[:1]:
            yield _run("ids", f"{verb} {value!r}", lambda w, c=command, v=value: [*c(w), v], expected="success")
    for verb, command in OPENED.items():
        for value in RUNS:
            yield _run("runs", f"{verb} {value[:20]!r}", lambda w, c=command, v=value: [*c(w), v])
        yield _run("runs", f"{verb} a dataset", lambda w, c=command: [*c(w), w.shop])
    for verb, command in LOADED.items():
        for value in DATA:
            act = lambda w, c=command, v=value: checked(capsid(*c(w), v))  # noqa: E731
            yield Case("data names", f"{verb} {value[:20]!r}", act)
    for name, commands in OTHERS.items():
        for number, command in enumerate(commands):
            yield _run("arguments", f"{name} {number}", command)
    for name, command in WORK.items():
        yield _run("working commands", name, command, expected="success")
    yield from _places()


def _config(world: World, text: str) -> list[object]:
    path = world.fresh() / "run.toml"
    path.write_text(text, encoding="utf-8")
    return ["fit", "rq-kmeans", "--data", "no such data", "--out", path.with_name("n"), "--config", path]


FILES: dict[str, Command] = {
    "predict": lambda w: ["predict", w.run, "-k", 3, "--out"],
    "export": lambda w: ["tokenizer", "export", w.run, "--out"],
    "encode": lambda w: ["tokenizer", "encode", w.run, "--items", w.items, "--out"],
}
FOLDERS: dict[str, Command] = {
    "fit": lambda w: ["fit", "popularity", "--data", w.shop, "--out"],
    "add": lambda w: ["tokenizer", "add", w.run, "--items", w.items, "--out"],
    "tokenizer fit": lambda w: [
        "tokenizer",
        "fit",
        "frequency",
        "--data",
        w.shop,
        "--set",
        "tokenizer.codebook=4",
        "--out",
    ],
    "import": lambda w: ["data", "import", w.shop, "--out"],
}


def _places() -> Iterator[Case]:
    """Where output may go, and that what was there is still there."""
    for verb, command in {**FILES, **FOLDERS}.items():
        files = verb in FILES
        for name, (make, ok_file, ok_folder) in PLACES.items():
            expected = "success" if (ok_file if files else ok_folder) else "error"
            act = lambda w, c=command, m=make: _write(w, c, m)  # noqa: E731
            yield Case("output places", f"{verb} --out {name}", act, expected=expected)  # type: ignore[arg-type]


def _write(world: World, command: Command, make: Callable[[Path], object]) -> Answer:
    """Write to a place; whatever else was there must not have changed."""
    folder = world.fresh()
    out = make(folder)
    before = _contents(folder) if folder.exists() else {}
    answer = capsid(*command(world), out)
    after = _contents(folder)
    if answer.code:
        lost = [name for name, content in before.items() if after.get(name) != content]
        left = [name for name in after if name not in before]
        if lost or left:
            return Answer(-1, "", "", f"refused, but changed {lost} and left {left}")
    if not stat.S_ISCHR(os.stat("/dev/null").st_mode):
        return Answer(-1, "", "", "/dev/null was replaced")
    return answer


def _contents(folder: Path) -> dict[str, bytes | str]:
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else "other"
        for p in sorted(folder.rglob("*"))
    }


def _file(path: Path, text: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _link(path: Path, to: Path | str) -> Path:
    path.symlink_to(to)
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# Name -> makes the place, whether a file may be written there, and whether a folder may.
PLACES: dict[str, tuple[Callable[[Path], object], bool, bool]] = {
    "new": (lambda f: f / "new", True, True),
    "new below new folders": (lambda f: f / "a" / "b", True, True),
    "an empty file": (lambda f: _file(f / "x", ""), True, False),
    "a file of mine": (lambda f: _file(f / "x"), False, False),
    "an empty folder": (lambda f: _folder(f / "x"), False, True),
    "a folder of mine": (lambda f: _file(f / "x" / "y").parent, False, False),
    "below a file": (lambda f: _file(f / "x") / "y", False, False),
    "a link to a file": (lambda f: _link(f / "l", _file(f / "x")), False, False),
    "a link to a folder": (lambda f: _link(f / "l", _file(f / "x" / "y").parent), False, False),
    "a link to itself": (lambda f: _link(f / "l", "l"), False, False),
    "/dev/null": (lambda f: "/dev/null", True, False),
    "/dev/full": (lambda f: "/dev/full", False, False),
    "/proc/x": (lambda f: "/proc/no-such", False, False),
    "a long name": (lambda f: f / LONG, False, False),
    "a zero byte": (lambda f: f"{f}/a\x00b", False, False),
    "an empty name": (lambda f: "", False, False),
    "the root": (lambda f: "/", False, False),
}
