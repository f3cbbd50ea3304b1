"""All rankers by kind."""

from __future__ import annotations

from capsid.decode.beam import BeamSearch
from capsid.decode.ensemble import Ensemble
from capsid.decode.exact import ExactScoring
from capsid.decode.fusion import BeamFusion
from capsid.decode.mixed import Mixed
from capsid.decode.parallel import ParallelScoring

RANKERS: dict[str, type] = {r.kind: r for r in (BeamSearch, ExactScoring, ParallelScoring, BeamFusion, Ensemble, Mixed)}
