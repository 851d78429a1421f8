"""One end of the socket between a lane and its child process: sends and receives whole messages."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("!I")
#: Bytes to receive at once: most messages are smaller, and take one system call.
_CHUNK = 65536


class Channel:
    """A message is its length and its bytes.

    The kernel keeps the timeout: a wait is one system call, and gives up the interpreter's lock once.
    """

    def __init__(self, end: socket.socket, timeout: float) -> None:
        """``timeout``: seconds that :meth:`receive` waits."""
        self._socket = end
        self._received = bytearray()
        whole, part = divmod(timeout, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole), int(part * 1e6)))

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """Return the next message; None after the timeout. Raises EOFError and OSError."""
        while (message := self._whole()) is None:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError
            self._received += chunk
        return message

    def _whole(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def is_silent(self) -> bool:
        """Whether the other end is open, and has sent nothing."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not self._received
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
