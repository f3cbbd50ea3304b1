"""Ways to damage a copy of a run's folder for `fuzz_artifacts.py`, as an attacker or a bad disk would.

Most of them write a manifest that fits the damaged files, so that hashes do not protect the reader. Every damage is
drawn from a seed, so a case can be reproduced.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path, random.Random], str]
MANIFEST = "manifest.json"
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    10**6,
    10**12,
    2**63,
    -(2**70),
    1e308,
    float("nan"),
    float("inf"),
    0.5,
    "",
    "x",
    "../../../etc/passwd",
    "\x1b[2J\x1b[31mred\x07",
    "a" * 10_000,
    [],
    {},
    [[]],
    [None],
    [0, -1],
    ["x", "x"],
    {"kind": "rq-kmeans"},
    {"kind": "no-such"},
    {"__import__": "os"},
)


def seal(folder: Path) -> None:
    """Write a manifest that fits what is there."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p != folder / MANIFEST)
    manifest["files"] = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def json_value(folder: Path, rng: random.Random) -> str:
    """Any value of any JSON file becomes another, goes, or gets company."""
    path = _pick(folder, rng, ".json")
    value = json.loads(path.read_text())
    places = list(_places(value))
    if not places or rng.random() < 0.05:
        new = rng.choice(VALUES)
        path.write_text(json.dumps(new))
        return f"{path.name} becomes {_short(new)}"
    holder, key = rng.choice(places)
    how, new = rng.choice(("set", "set", "set", "drop", "add")), rng.choice(VALUES)
    if how == "set":
        holder[key] = new
    elif how == "drop":
        del holder[key]
    elif isinstance(holder, dict):
        holder["surprise"] = new
    else:
        holder.insert(rng.randrange(len(holder) + 1), new)
    path.write_text(json.dumps(value))
    return f"{path.name}: {how} {key!r} {_short(new)}"


def json_text(folder: Path, rng: random.Random) -> str:
    """A JSON file becomes what no JSON reader likes."""
    path = _pick(folder, rng, ".json")
    texts = {
        "deep": b"[" * 200_000,
        "digits": b"9" * 5_000,
        "not UTF-8": b'{"a": "\xff\xfe"}',
        "cut off": path.read_bytes()[: rng.randrange(max(path.stat().st_size, 1))],
        "empty": b"",
        "zeros": bytes(1000),
        "twice": path.read_bytes() * 2,
        "constants": b"[NaN, Infinity, -Infinity]",
    }
    name = rng.choice(sorted(texts))
    path.write_bytes(texts[name])
    return f"{path.name}: {name}"


def array(folder: Path, rng: random.Random) -> str:
    """An array of an npz or npy has other numbers, another type or another shape."""
    path = _pick(folder, rng, ".npz", ".npy")
    arrays = _load(path) or {"surprise": np.zeros(3)}
    name = rng.choice(sorted(arrays))
    how, new = _spoiled(arrays[name], rng)
    if how == "drop" and path.suffix == ".npz":
        del arrays[name]
    else:
        arrays[name] = new
    _save(path, arrays)
    return f"{path.name}[{name}]: {how}"


def array_file(folder: Path, rng: random.Random) -> str:
    """An npz or npy that claims, packs or hides more than it holds."""
    path = _pick(folder, rng, ".npz", ".npy")
    arrays = _load(path) or {"surprise": np.zeros(3)}
    name = rng.choice(sorted(arrays))
    header = {"descr": rng.choice(("<f4", "<i8", "|u1", "|O", "<U1000000", "<M8[s]")), "fortran_order": False}
    header["shape"] = rng.choice(((10**12,), (2**40, 2**40), (-1,), (0,), (), (10**9, 0), (3, 10**7)))  # type: ignore[assignment]
    claim = _npy(header, b"\0" * rng.choice((0, 8, 100)))
    if path.suffix == ".npy":
        path.write_bytes(claim)
        return f"{path.name}: claims {header['shape']} of {header['descr']}"
    how = rng.choice(("claim", "bomb", "other members", "no zip", "pickle"))
    if how == "no zip":
        path.write_bytes(b"PK\x03\x04" + rng.randbytes(200))
        return f"{path.name}: {how}"
    compression = zipfile.ZIP_DEFLATED if how == "bomb" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", compression) as archive:
        for other, content in arrays.items():
            archive.writestr(f"{other}.npy", claim if other == name and how == "claim" else _bytes(content))
        if how == "bomb":
            archive.writestr(f"{name}.npy", _npy({**header, "descr": "|u1", "shape": (1 << 26,)}, bytes(1 << 26)))
        if how == "other members":
            archive.writestr("../../evil.npy", _bytes(np.zeros(3)))
            archive.writestr(name, b"not an array")
        if how == "pickle":
            archive.writestr(
                f"{name}.npy", _npy({"descr": "|O", "fortran_order": False, "shape": (1,)}, b"cos\nsystem\n")
            )
    return f"{path.name}: {how}"


def weights(folder: Path, rng: random.Random) -> str:
    """Weights that are not numbers, of another shape, missing, too many, or in a broken file."""
    path = _pick(folder, rng, ".safetensors")
    state = {name: tensor.clone() for name, tensor in load_file(path).items()}
    how = rng.choice(("nan", "inf", "shape", "type", "drop", "add", "huge", "header", "cut", "length"))
    if how in ("header", "cut", "length") or not state:
        data = bytearray(path.read_bytes())
        if how == "length":
            data[:8] = rng.choice((2**63, 2**32, 10**8, 0)).to_bytes(8, "little")
        elif how == "header":
            data[rng.randrange(8, min(len(data), 2000))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(bytes(data))
        return f"{path.name}: {how}"
    name = rng.choice(sorted(state))
    tensor = state[name]
    if how in ("nan", "inf", "huge"):
        value = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38}[how]
        state[name] = tensor.float().contiguous()
        state[name].view(-1)[rng.randrange(max(tensor.numel(), 1)) if tensor.numel() else slice(0)] = value
    elif how == "shape":
        state[name] = torch.zeros(rng.choice(((0,), (1,), (3, 5), (*tensor.shape, 2), tuple(tensor.shape)[::-1])))
    elif how == "type":
        state[name] = tensor.to(rng.choice((torch.int64, torch.float16, torch.bool, torch.float64)))
    elif how == "drop":
        del state[name]
    else:
        state["surprise"] = torch.zeros(3)
    save_file(state, path)
    return f"{path.name}[{name}]: {how}"


def table(folder: Path, rng: random.Random) -> str:
    """Rows that are too many, too few, twice, unnamed, or no table at all."""
    path = _pick(folder, rng, ".parquet")
    frame = pl.read_parquet(path)
    how = rng.choice(("rows", "fewer", "twice", "no id", "null", "numbers", "many", "noise", "cut", "other", "lists"))
    if how in ("noise", "cut"):
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 20) if how == "noise" else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data) if how == "noise" else bytes(data[: rng.randrange(len(data))]))
        return f"{path.name}: {how}"
    first = frame.columns[0]
    ids = frame[first]
    made = {
        "rows": lambda: pl.concat([frame, frame.with_columns((ids + "x").alias(first))]),
        "fewer": lambda: frame.head(len(frame) // 2),
        "twice": lambda: frame.with_columns(pl.lit("same").alias(first)),
        "no id": lambda: frame.drop(first),
        "null": lambda: frame.with_columns(pl.lit(None, dtype=pl.String).alias(first)),
        "numbers": lambda: frame.with_columns(pl.int_range(len(frame)).alias(first)),
        "many": lambda: pl.DataFrame({first: pl.repeat("a", 20_000_000, eager=True)}),
        "other": lambda: frame.with_columns(ids.reverse()),
        "lists": lambda: frame.with_columns(pl.Series(c, [[{"a": 1}]] * len(frame)) for c in frame.columns[1:]),
    }[how]()
    made.write_parquet(path)
    return f"{path.name}: {how}"


def bytes_(folder: Path, rng: random.Random) -> str:
    """Some bytes of any file are others, and the manifest agrees."""
    path = rng.choice(_files(folder))
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 30))):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))
    return f"{path.relative_to(folder)}: changed bytes"


def manifest(folder: Path, rng: random.Random) -> str:
    """The manifest itself lies."""
    path = folder / MANIFEST
    value = json.loads(path.read_text())
    names = ("../x", "/etc/passwd", "a\0b", "..", "", "tokenizer", "tokenizer/../about.json", "x" * 5000, "no/such")
    how = rng.choice(("name", "hash", "format", "kind", "files", "value", "extra file", "missing file", "text"))
    if how == "name":
        value["files"][rng.choice(names)] = hashlib.sha256(b"").hexdigest()
    elif how == "hash":
        value["files"][rng.choice(sorted(value["files"]))] = rng.choice(VALUES)
    elif how == "text":
        path.write_bytes(rng.choice((b"", b"{", b"[" * 100_000, b"null", rng.randbytes(100))))
        return f"manifest: {how}"
    elif how == "extra file":
        (folder / rng.choice(("more.json", "tokenizer/more.npz", ".hidden"))).write_text("{}")
    elif how == "missing file":
        rng.choice(_files(folder)).unlink()
    elif how == "value":
        value = rng.choice(VALUES)
    else:
        value[how] = rng.choice(VALUES)
    path.write_text(json.dumps(value))
    return f"manifest: {how}"


def special(folder: Path, rng: random.Random) -> str:
    """A pipe, link or folder stands where a file belongs, or beside the files."""
    path = rng.choice([*_files(folder), folder / "extra", folder / MANIFEST])
    how = rng.choice(("pipe", "link out", "link in", "loop", "folder", "gone"))
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how != "gone":
        path.symlink_to({"link out": "/etc/hostname", "link in": "about.json", "loop": path.name}[how])
    return f"{path.relative_to(folder)}: {how}"


def swapped(folder: Path, rng: random.Random) -> str:
    """A file holds what another file should."""
    first, second = rng.sample(_files(folder), 2)
    shutil.copy(first, second)
    return f"{second.relative_to(folder)} holds {first.relative_to(folder)}"


# Name -> the damage, and whether the manifest is made to fit afterwards.
DAMAGES: dict[str, tuple[Damage, bool]] = {
    "json value": (json_value, True),
    "json text": (json_text, True),
    "array": (array, True),
    "array file": (array_file, True),
    "weights": (weights, True),
    "table": (table, True),
    "bytes": (bytes_, True),
    "swapped": (swapped, True),
    "manifest": (manifest, False),
    "special file": (special, False),
    "unsealed bytes": (bytes_, False),
}
# Where most of what a reader interprets lies, most cases are.
SHARES = {"json value": 5, "array": 5, "weights": 2, "array file": 2}


def spoil(folder: Path, number: int) -> tuple[str, str]:
    """Damage number `number`: its group, and what was done."""
    rng = random.Random(number)
    group = rng.choice([name for name in DAMAGES for _ in range(SHARES.get(name, 1))])
    damage, fits = DAMAGES[group]
    about = damage(folder, rng)
    if fits:
        seal(folder)
    return group, about


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def _pick(folder: Path, rng: random.Random, *endings: str) -> Path:
    return rng.choice([p for p in _files(folder) if p.suffix in endings])


def _places(value: Any) -> Any:
    """Every (holder, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:50]) if isinstance(value, list) else ()
    for key, child in items:
        yield value, key
        yield from _places(child)


def _load(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        return {"": np.load(path)}
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        if path.suffix == ".npy":
            np.save(file, arrays[""])
        else:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def _spoiled(array: np.ndarray, rng: random.Random) -> tuple[str, np.ndarray]:
    changed = array.copy()
    how = rng.choice(
        ("drop", "one", "all", "type", "longer", "shorter", "empty", "dimension", "scalar", "text", "reverse")
    )
    number = changed.dtype.kind in "iufb"
    if how == "one" and changed.size and number:
        # Types wrap or refuse large numbers by themselves.
        values = np.array([-1, 0, 10**9, 2**31 - 1, -(2**31)]).astype(changed.dtype)
        if changed.dtype.kind == "f":
            values = np.array([np.nan, np.inf, -np.inf, 1e30, 0], dtype=changed.dtype)
        changed.flat[rng.randrange(changed.size)] = values[rng.randrange(len(values))]
    elif how == "all" and number:
        changed[...] = np.array(rng.choice((-1, 0, 1, 1000))).astype(changed.dtype)
    elif how == "type":
        kind = rng.choice((np.float64, np.int8, np.uint64, np.complex128, np.bool_))
        changed = np.zeros(changed.shape, kind) if not number else changed.astype(kind)
    elif how == "longer" and changed.ndim:
        changed = np.concatenate([changed, changed[:1]])
    elif how == "shorter" and changed.ndim:
        changed = changed[:-1]
    elif how == "empty":
        changed = np.zeros((0,) * max(changed.ndim, 1), changed.dtype)
    elif how == "dimension":
        changed = changed[None]
    elif how == "scalar":
        changed = np.array(7)
    elif how == "text":
        changed = np.array(["x"] * max(len(np.atleast_1d(changed)), 1))
    elif how == "reverse" and changed.ndim:
        changed = changed[::-1].copy()
    return how, changed


def _npy(header: dict[str, Any], data: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def _bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _short(value: Any) -> str:
    return repr(value)[:60]
