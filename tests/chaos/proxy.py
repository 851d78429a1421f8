"""A TCP proxy in front of Redis whose line can be cut, blocked, slow, or down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeAlias

#: A unix socket's path, or host and port.
Address: TypeAlias = "str | tuple[str, int]"

#: Bytes that are read at a time.
CHUNK = 65536
#: Seconds that closed connections get to end.
PATIENCE = 5.0


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to Redis, in a thread of its own."""

    def __init__(self, upstream: Address) -> None:
        self.port = 0
        #: Seconds by which each answer of Redis is late.
        self.late = 0.0
        self._upstream = upstream
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._flows: asyncio.Event | None = None

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._do(self._open())

    def cut(self) -> None:
        """Close all connections."""
        self._do(self._cut())

    def hold(self) -> None:
        """Accept, and forward nothing, until :meth:`heal`."""
        self._do(self._hold())

    def down(self) -> None:
        """Close all connections and refuse new ones, until :meth:`heal`."""
        self._do(self._close())

    def heal(self) -> None:
        """Accept and forward again; what was held back arrives."""
        self._do(self._open())

    def switch(self, upstream: Address) -> None:
        """Close all connections, and forward to another Redis from now on."""
        self._upstream = upstream
        self.cut()

    def stop(self) -> None:
        """End with all connections."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result()

    async def _open(self) -> None:
        if self._flows is None:
            self._flows = asyncio.Event()
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _hold(self) -> None:
        assert self._flows is not None
        self._flows.clear()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _end(self) -> None:
        assert self._flows is not None
        self._flows.set()
        await self._close()
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=PATIENCE)

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._upstream, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self._upstream)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pumps = self._pump(reader, far_writer), self._pump(far_reader, writer, is_answer=True)
        self._writers |= {writer, far_writer}
        await asyncio.gather(*pumps)
        self._writers -= {writer, far_writer}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool = False
    ) -> None:
        """Until either side ends; then the other does, too."""
        assert self._flows is not None
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                if is_answer and self.late:
                    await asyncio.sleep(self.late)
                writer.write(data)
                await writer.drain()
        writer.close()
