"""A version of the catalogue with the run that it is made from and the versions before it.

A lineage never changes: an edit makes another one, which is served or forgotten as a whole. Knows neither journals nor
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.snapshot import Edit, Snapshot, State, item_frame, with_state

Load = Callable[[], Recommender]


@dataclass(frozen=True, eq=False)
class Lineage:
    """`base` is the run without edits, read for version `reloaded`.

    `states` are the versions available for rollback, oldest first; `snapshots` are those that `base` was built for.
    """

    current: Snapshot
    base: Recommender
    reloaded: int
    kept: int
    states: Mapping[int, State]
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)

    @property
    def next_version(self) -> int:
        """The number of the version after this one."""
        return self.current.version + 1

    def check(self, edit: Edit) -> None:
        """Refuse an edit that does not fit, before anything is built."""
        if edit.operation == "rollback":
            self._check_kept(edit.to)
        refusal = _misfit(self.current, edit)
        if refusal is not None:
            raise refusal
        item_frame(edit.rows, self.current.recommender.catalogue_.attributes)

    def edited(self, edit: Edit, load: Load) -> Lineage:
        """The lineage after an edit that fits."""
        if edit.operation == "reload":
            return self.moved(self.current.state, self.next_version, self.next_version, load)
        if edit.operation == "rollback":
            old = self._earlier(edit.to)
            return self._then(Snapshot(self.next_version, old.recommender, old.state))
        return self._then(self.current.then(edit))

    def followed(self, edit: Edit, load: Load) -> Lineage:
        """The lineage after an edit that another process has made.

        That process may have read the run's folder at another time, so the items of the edit may be known already or
        unknown here, or have other attributes. The edit is then applied as it is at a start.
        """
        if _misfit(self.current, edit) is None:
            return self.edited(edit, load)
        return self._then(with_state(self.base, self.current.state.after(edit), self.next_version))

    def moved(self, state: State, version: int, reloaded: int, load: Load) -> Lineage:
        """The lineage at a later version; the run is read again if that version was made of a newer one."""
        if reloaded <= self.reloaded:
            return self._then(with_state(self.base, state, version))
        base = load()
        after = with_state(base, state, version)
        # Versions belong to the edits, not to the model: a rollback keeps the new model.
        return Lineage(after, base, reloaded, self.kept, self._states_after())

    def _then(self, after: Snapshot) -> Lineage:
        states = self._states_after()
        built = {**self.snapshots, self.current.version: self.current}
        snapshots = {version: snapshot for version, snapshot in built.items() if version in states}
        return Lineage(after, self.base, self.reloaded, self.kept, states, snapshots)

    def _states_after(self) -> dict[int, State]:
        states = {**self.states, self.current.version: self.current.state}
        return {version: states[version] for version in list(states)[max(len(states) - self.kept, 0) :]}

    def _check_kept(self, version: int) -> None:
        if version not in self.states:
            kept = ", ".join(map(str, self.states)) or "none"
            raise Refused(409, "unknown_version", f"version {version} is not stored", hint=f"stored versions: {kept}")

    def _earlier(self, version: int) -> Snapshot:
        self._check_kept(version)
        return self.snapshots.get(version) or with_state(self.base, self.states[version], version)


def _misfit(snapshot: Snapshot, edit: Edit) -> Refused | None:
    """Why an edit does not fit: its new items must be new, its other items must exist."""
    items = snapshot.recommender.catalogue_.items
    for row in edit.rows:
        name = row["item_id"]
        if name in items:
            hint = "restore it" if snapshot.is_retired(name) else "ids of known items do not change"
            return Refused(409, "known_item", f"item {name!r} is in the catalogue already", hint=hint)
    for name in edit.items:
        if name not in items:
            return Refused(404, "unknown_item", f"there is no item {name!r}", hint="GET /v1/items?q= finds items")
    return None
