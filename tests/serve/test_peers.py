"""A service of several workers is ready when each of them has got ready."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capsid.serve.workers import Peers


def test_all_have_to_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Peers(tmp_path, 2), Peers(tmp_path, 2)
    one.join()
    one.join()
    assert not one.complete
    assert not two.complete
    monkeypatch.setattr(os, "getpid", lambda: 10**9)
    two.join()
    assert one.complete
    assert two.complete


def test_a_single_worker_waits_for_nobody() -> None:
    alone = Peers(None, 1)
    alone.join()
    assert alone.complete
