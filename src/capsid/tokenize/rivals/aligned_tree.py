"""A balanced tree of clusters whose numbers mean the same direction under every parent (GAOQ: ReSID, Liang et al. 2026,
arXiv 2602.02338).

Every id is unique: each level splits a cluster into parts of nearly equal size, and the last code tells the items of
the smallest clusters apart. Below the first level, a cluster's number says in which of some fixed orthonormal
directions (anchors) it lies, seen from its parent. Known items have the codes of the fit; a new item follows the
nearest centres and may share an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.randomness import child_seed, numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import fitted, l2_normalise, pack_strings, require_items, unpack_strings, vectors_of
from capsid.ids.assignment import cheapest_columns
from capsid.ids.order import group_numbers
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.kmeans import balanced_kmeans, class_means, kmeans, squared_distances

# Seen from their parent, centres nearer than this share of the vectors' length have no direction.
NO_DIRECTION = 1e-5
# Iterations of k-means and of its balancing.
ITERATIONS = 20


@dataclass(kw_only=True)
class AlignedTree(Checked):
    """Clusters of clusters; one more code tells the items of the smallest clusters apart."""

    kind: ClassVar[str] = "aligned-tree"
    branching: tuple[int, ...] = setting(
        (24, 40), "Parts of a cluster at each level, fewer where there are fewer items.", least=1, count=(1, None)
    )
    aligned: bool = setting(True, "Whether a number means the same direction under every parent.")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes at every depth; the last is the largest number of items that a cluster has."""
        return tuple(len(centres_KD) for centres_KD in self._fitted())

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> AlignedTree:
        """Split the catalogue level by level; the last level has one item per code."""
        require_items(table)
        vectors_ND = vectors_of(table)
        codes_NL = np.zeros((len(table), 0), dtype=np.int32)
        paths, nodes, means = [], [], []
        above_ND = np.zeros_like(vectors_ND)
        for level in range(len(self.branching) + 1):
            split = self._split_all(vectors_ND, codes_NL, above_ND, level, seed)
            codes_NL = np.column_stack([codes_NL, split.code_N])
            nothing_KD = np.zeros((int(split.code_N.max()) + 1, vectors_ND.shape[1]))
            means.append(class_means(vectors_ND - above_ND, split.code_N, nothing_KD))
            if level < len(self.branching):
                above_ND = split.centre_ND
                path_ML, first = np.unique(codes_NL, axis=0, return_index=True)
                paths.append(path_ML)
                nodes.append(above_ND[first])
            progress.line(f"aligned tree: level {level + 1}, {int(split.code_N.max()) + 1:,} codes")
        self.items_, self.codes_ = table.items, codes_NL.astype(np.int32)
        self.paths_, self.nodes_ = tuple(paths), tuple(nodes)
        self.means_: tuple[np.ndarray, ...] = tuple(means)
        return self

    def _split_all(
        self, vectors_ND: np.ndarray, codes_NL: np.ndarray, above_ND: np.ndarray, level: int, seed: int
    ) -> _Split:
        """Split every cluster of a level; a leaf's parts are its items."""
        parents_N = group_numbers(Ragged.from_dense(codes_NL)) if level else np.zeros(len(vectors_ND), dtype=np.int64)
        members = Ragged.grouped(np.arange(len(vectors_ND)), parents_N, int(parents_N.max()) + 1)
        largest = int(members.lengths.max())
        width = largest if level == len(self.branching) else min(self.branching[level], largest)
        anchors_KD = anchors(width, vectors_ND.shape[1], child_seed(seed, self.kind, level))
        out = _Split(np.zeros(len(vectors_ND), dtype=np.int64), np.empty_like(vectors_ND))
        for parent, rows in enumerate(members):
            if level == len(self.branching):
                label_R, centres_CD = np.arange(len(rows)), vectors_ND[rows]
            else:
                label_R, centres_CD = balanced_split(
                    vectors_ND[rows], width, child_seed(seed, self.kind, level, parent)
                )
            number_C = np.arange(len(centres_CD))
            if level and self.aligned:
                number_C = aligned_numbers(centres_CD, above_ND[rows[0]], anchors_KD)
            out.code_N[rows], out.centre_ND[rows] = number_C[label_R], centres_CD[label_R]
        return out

    def encode(self, table: ItemTable) -> Ragged:
        """The codes of the fit for known items, nearest centres for new ones."""
        self._fitted()
        vectors_ND = vectors_of(table, dim=self.nodes_[0].shape[1])
        row_N = self.items_.numbers(table.items, missing="negative")
        codes_NL = self.codes_[row_N]
        new = np.flatnonzero(row_N < 0)
        if len(new):
            codes_NL[new] = self._nearest_codes(vectors_ND[new])
        return Ragged.from_dense(codes_NL)

    def _nearest_codes(self, vectors_ND: np.ndarray) -> np.ndarray:
        """Down the tree by the nearest centre; the last code is the one whose items lie in the nearest direction."""
        codes_NL = np.zeros((len(vectors_ND), len(self.branching) + 1), dtype=np.int32)
        above_ND = np.zeros_like(vectors_ND)
        for level, (path_ML, nodes_MD) in enumerate(zip(self.paths_, self.nodes_)):
            for row, vector_D in enumerate(vectors_ND):
                below = np.flatnonzero((path_ML[:, :level] == codes_NL[row, :level]).all(1))
                squares_1C = np.maximum(squared_distances(vector_D[None], nodes_MD[below]), 0)
                best = below[squares_1C[0].argmin()]
                codes_NL[row, level], above_ND[row] = path_ML[best, level], nodes_MD[best]
        towards_NK = l2_normalise(vectors_ND - above_ND) @ l2_normalise(self.means_[-1]).T
        codes_NL[:, -1] = towards_NK.argmax(1)
        return codes_NL

    def decode(self, codes: Ragged) -> np.ndarray:
        """The centre of the smallest cluster that an id names; the last code of an id adds nothing."""
        self._fitted()
        out = np.zeros((len(codes), self.nodes_[0].shape[1]), dtype=np.float32)
        centre = {
            tuple(path): node_D
            for path_ML, nodes_MD in zip(self.paths_, self.nodes_)
            for path, node_D in zip(path_ML.tolist(), nodes_MD)
        }
        for row, own in enumerate(codes):
            for length in range(1, min(len(own), len(self.branching)) + 1):
                out[row] = centre.get(tuple(own[:length].tolist()), out[row])
        return out

    def centres(self) -> tuple[np.ndarray, ...]:
        """For each code the mean, over its items, of where its clusters lie as seen from their parents."""
        return self._fitted()

    def state(self) -> dict[str, np.ndarray]:
        """Codes of known items, paths and centres of the clusters, means of the codes."""
        means = {f"means.{level}": means_KD for level, means_KD in enumerate(self._fitted())}
        paths = {f"paths.{level}": path_ML for level, path_ML in enumerate(self.paths_)}
        nodes = {f"nodes.{level}": nodes_MD for level, nodes_MD in enumerate(self.nodes_)}
        return {"items": pack_strings(self.items_), "codes": self.codes_, **means, **paths, **nodes}

    def load_state(self, state: dict[str, np.ndarray]) -> AlignedTree:
        levels = range(len(self.branching))
        self.items_, self.codes_ = Vocabulary(unpack_strings(state["items"])), state["codes"]
        self.paths_ = tuple(state[f"paths.{level}"] for level in levels)
        self.nodes_ = tuple(state[f"nodes.{level}"] for level in levels)
        self.means_ = tuple(state[f"means.{level}"] for level in range(len(self.branching) + 1))
        return self

    def _fitted(self) -> tuple[np.ndarray, ...]:
        return fitted(getattr(self, "means_", None), self)


@dataclass(frozen=True, eq=False)
class _Split:
    """The new code of every item and the centre of its new cluster."""

    code_N: np.ndarray
    centre_ND: np.ndarray


def balanced_split(vectors_ND: np.ndarray, parts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters whose sizes differ by at most one: their labels and centres. Fewer items than parts: one item each."""
    items = len(vectors_ND)
    if items <= parts:
        return np.arange(items), vectors_ND
    start_KD = kmeans(vectors_ND, parts, ITERATIONS, 1, seed)
    found = balanced_kmeans(vectors_ND, start_KD, -(-items // parts), least=items // parts, iterations=ITERATIONS)
    return found.labels_N, found.centres_KD


def anchors(count: int, width: int, seed: int) -> np.ndarray:
    """Orthonormal directions; beyond the width, further random orthonormal bases. Shape: (count, width)."""
    rng = numpy_rng(seed, "anchors")
    bases = [np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(-(-count // width))]
    return np.concatenate(bases)[:count].astype(np.float32)


def aligned_numbers(centres_CD: np.ndarray, parent_D: np.ndarray, anchors_KD: np.ndarray) -> np.ndarray:
    """Different numbers for the parts of a cluster, with the largest sum of cosines to the anchors of those numbers."""
    towards_CD = centres_CD - parent_D
    short_C = np.linalg.norm(towards_CD, axis=1) <= NO_DIRECTION * np.linalg.norm(centres_CD, axis=1)
    cosines_CK = np.where(short_C[:, None], 0, l2_normalise(towards_CD) @ anchors_KD.T)
    return cheapest_columns(-cosines_CK)
