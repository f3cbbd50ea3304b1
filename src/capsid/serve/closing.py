"""A server that closes its port without losing requests that have already reached it.

A client whose connection the kernel has accepted does not know that the port is about to close. The server therefore
answers such clients first. It knows nothing of what the answers are: while the service drains, they are refusals.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn

# Turns of the event loop before and after the port is closed, and seconds between them. Turns are counted rather than
# time: on a busy machine the process may sleep through any time, and would then close connections before reading them.
_TURNS, _PAUSE = 20, 0.02


class PatientServer(uvicorn.Server):
    """Before it ends, takes the connections that wait at its port and the requests of those that are open."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, wait for answers and end the application."""
        await self._turn(3)
        for server in self.servers:
            server.close()
        await self._turn(_TURNS)
        await super().shutdown(sockets)

    async def _turn(self, turns: int) -> None:
        """Let the event loop go round, unless no connection is left."""
        for turn in range(turns):
            if turn > 2 and not self.server_state.connections:
                return
            await asyncio.sleep(_PAUSE)
