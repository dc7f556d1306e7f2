"""Decides whose frame is served next, and how much may wait for one peer. Knows no socket and no meaning.

Frames of one route keep their order; routes take turns. A route past its bound is a flooder: what waits of it is dropped, and so is
everything that still comes of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

MOST_FRAMES = 4_096  # of one peer; a game that asks a few hundred things at once is far from it (PROTOCOL.md, Order and flow)
MOST_BYTES = 8 << 20  # of one peer: several of the longest requests there are
MOST_FLOODERS = 1_024  # that are remembered; frames of an older one are long gone


class Inbox:
    def __init__(self, most_frames: int = MOST_FRAMES, most_bytes: int = MOST_BYTES) -> None:
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._waiting: OrderedDict[bytes, deque[bytes | None]] = OrderedDict()  # in the order of their turns; none is empty
        self._n_bytes: dict[bytes, int] = {}
        self._flooders: OrderedDict[bytes, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def is_full(self, route: bytes) -> bool:
        """Whether one more frame makes it a flooder."""
        frames = self._waiting.get(route)
        return frames is not None and (len(frames) >= self._most_frames or self._n_bytes[route] >= self._most_bytes)

    def is_flooder(self, route: bytes) -> bool:
        return route in self._flooders

    def put(self, route: bytes, frame: bytes | None) -> None:
        """A frame of a route that is neither full nor a flooder. None: it was no single frame."""
        self._waiting.setdefault(route, deque()).append(frame)
        self._n_bytes[route] = self._n_bytes.get(route, 0) + len(frame or b"")

    def shut(self, route: bytes) -> None:
        """The route is a flooder from now on."""
        self._waiting.pop(route, None)
        self._n_bytes.pop(route, None)
        self._flooders[route] = None
        while len(self._flooders) > MOST_FLOODERS:
            self._flooders.popitem(last=False)

    def take(self) -> tuple[bytes, bytes | None]:
        """The next frame and its route. There must be one."""
        route, frames = next(iter(self._waiting.items()))
        frame = frames.popleft()
        if frames:
            self._waiting.move_to_end(route)
            self._n_bytes[route] -= len(frame or b"")
        else:
            del self._waiting[route], self._n_bytes[route]
        return route, frame
