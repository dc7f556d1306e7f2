"""Types of the C extension; _mixer.c holds the ideas and the rules."""

from typing import TypedDict

from typing_extensions import Buffer  # collections.abc has it from 3.12 on

MAX_RANK: int
MAX_ROWS: int
MAX_SITES: int
MAX_PARTS: int

class Probe(TypedDict):
    type: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    op: int
    src0: int
    src1: int
    view_src: int
    data: int
    name: bytes
    custom_fun: int
    custom_tasks: int
    custom_user: int

class Counts(TypedDict):
    rewritten: int
    broken: int
    misfits: int

class Adapter:
    """Tables of one LoRA. Immutable; freed when the last row that uses it is gone."""

    def __init__(self, n_sites: int, matrices: list[tuple[int, int, int, int, float, Buffer, Buffer]], /) -> None:
        """matrices: (site, rank, n_in, n_out, scale, A as binary16 rank x n_in, B as binary16 n_out x rank), row-major."""

    @property
    def n_bytes(self) -> int: ...

Parts = tuple[tuple[Adapter, float], ...]
"""The voice of one row: adapters and their scales, at most MAX_PARTS. () is the base alone."""

class Mixer:
    """Rewrites the graphs of one llama.cpp context. Must outlive that context."""

    def __init__(self, sites: list[tuple[str, int, int]], op_codes: tuple[int, ...], n_threads: int, /) -> None: ...
    def set_rows(self, voices: list[Parts], wants: list[bool], /) -> None: ...
    def set_threads(self, n_threads: int, /) -> None: ...
    def counts(self) -> Counts: ...
    def seen(self) -> list[str]: ...
    @property
    def callback(self) -> int: ...
    @property
    def user_data(self) -> int: ...

def probe(address: int, /) -> Probe: ...
def use_kernels(name: str | None, /) -> str: ...
def delta(voice: Parts, site: int, n_in: int, n_out: int, x: Buffer, /) -> bytes: ...
