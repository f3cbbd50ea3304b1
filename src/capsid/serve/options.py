"""How a service runs: address, limits, keys, where edits are kept. Checked once, passed to workers as JSON."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from capsid.errors import ConfigError
from capsid.settings import check_settings, setting

ENVIRONMENT = "CAPSID_SERVE_OPTIONS"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """All options of `capsid serve`. Paths are strings, so that the options can be passed as JSON."""

    run: str = setting(about="The folder that `capsid fit` wrote.", count=(1, None))
    state: str = setting("", "Where edits are kept; by default a folder beside the run.")
    host: str = setting("127.0.0.1", "Address to listen on; all but loopback need an API key.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", least=0, most=65535)
    workers: int = setting(1, "Processes; each has its own model and shares the mapped trie.", least=1, most=64)
    api_key_file: str = setting("", "A file whose first line is the key that every request needs.")
    admin_key_file: str = setting("", "A file whose first line is the key that changes to the catalogue need.")
    batch: int = setting(16, "Maximum histories in one search.", least=1, most=256)
    queue: int = setting(256, "Maximum waiting histories; beyond that the answer is 429.", least=1)
    deadline: float = setting(2.0, "Seconds after which a waiting request is answered 504.", above=0, most=600)
    body_limit: int = setting(1 << 20, "Maximum bytes of a request body; beyond that the answer is 413.", least=1024)
    rate_limit: float = setting(0.0, "Requests per second for each key or address; 0 sets no limit.", least=0)
    cors: tuple[str, ...] = setting((), "Origins whose pages may call the service; none by default.")
    compare: tuple[str, ...] = setting((), "Other runs to compare the served one with.")
    recover: bool = setting(False, "Start with the edits before the damage of a damaged journal; a copy is kept.")
    drain: float = setting(1.0, "Seconds between SIGTERM and closing the port, for clients to notice.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.api_key_file and not os.environ.get("CAPSID_API_KEY") and not is_loopback(self.host):
            raise ConfigError(
                f"--host must be a loopback address without an API key, got {self.host}",
                hint="give --api-key-file, or listen on 127.0.0.1",
            )

    @property
    def state_folder(self) -> Path:
        """The folder of the journal of edits.

        A run that is a link keeps its edits beside the link, so that they stay when it is pointed at the next run.
        """
        if self.state:
            return Path(self.state).absolute()
        run = Path(self.run).absolute()
        return run.parent.resolve() / f"{run.name}.live"

    def for_workers(self) -> ServeOptions:
        """The same options with an absolute state folder, for worker processes; refuses edits in an old place."""
        folder, run = self.state_folder, Path(self.run).resolve()
        earlier = run.with_name(f"{run.name}.live")
        if not self.state and earlier.exists() and not folder.exists():
            raise ConfigError(
                f"edits of {self.run} must be in {folder}, but there is only {earlier}",
                hint=f"mv {earlier} {folder}, or give --state {earlier}",
            )
        return replace(self, state=str(folder))

    def to_environment(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> ServeOptions:
        """The options that the parent process passed on."""
        data = json.loads(os.environ[ENVIRONMENT])
        return cls(**{**data, "cors": tuple(data["cors"]), "compare": tuple(data["compare"])})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
