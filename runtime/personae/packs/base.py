"""What a base model's header says about adapters: which matrices there are, of what shape, and which may be adapted.

Decides nothing about a single adapter (lora.py does) and reads no weights. llama.cpp applies LoRA only where an architecture's
graph was written to; the engine, which has seen that graph, narrows the sites down with `with_sites`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from personae.packs.gguf import GgufHeader, TensorInfo

Shape = tuple[int, int]  # (n_in, n_out), which is ggml's order: ne[0], ne[1]

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """A base model as an adapter meets it. Tensor names are those of the GGUF file."""

    architecture: str  # GGUF general.architecture; "" when the file has none
    name: str  # GGUF general.name, or the file's name without its ending
    file: str  # the file's name, without folder
    matrices: dict[str, Shape]  # every 2-D `.weight`, adaptable or not
    experts: frozenset[str]  # 3-D `.weight`: one matrix for each expert
    vectors: frozenset[str]  # 1-D `.weight`: norms
    tied: bool  # token_embd serves as output matrix too
    sites: frozenset[str]  # the matrices an adapter may touch
    n_layers: int = 0  # this and the three below: 0 where the header does not say
    n_embd: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    hashes: frozenset[str] = frozenset()  # SHA-256, hex, of the files this base is known as; empty: unknown

    @classmethod
    def of(cls, header: GgufHeader, hashes: Iterable[str] = ()) -> BaseShapes:
        weights = {name: tensor for name, tensor in header.tensors.items() if name.endswith(".weight")}
        matrices = {name: (tensor.dims[0], tensor.dims[1]) for name, tensor in weights.items() if _rank(tensor) == 2}
        tied = OUTPUT not in header.tensors
        return cls(
            architecture=header.text("general.architecture") or "",
            name=header.text("general.name") or header.path.stem,
            file=header.path.name,
            matrices=matrices,
            experts=frozenset(name for name, tensor in weights.items() if _rank(tensor) == 3),
            vectors=frozenset(name for name, tensor in weights.items() if _rank(tensor) == 1),
            tied=tied,
            sites=frozenset(name for name in matrices if name.startswith("blk.") or name == OUTPUT),
            n_layers=_dimension(header, "block_count"),
            n_embd=_dimension(header, "embedding_length"),
            n_heads=_dimension(header, "attention.head_count"),
            n_kv_heads=_dimension(header, "attention.head_count_kv"),
            hashes=frozenset(hashes),
        )

    def with_sites(self, names: Iterable[str]) -> BaseShapes:
        """The same base where only these matrices may be adapted. Names that are no matrices of it are dropped."""
        return replace(self, sites=frozenset(names) & self.matrices.keys())


def _dimension(header: GgufHeader, key: str) -> int:
    """A number of the model's own section. 0 too where it differs from layer to layer and is an array."""
    value = header.metadata.get(f"{header.text('general.architecture')}.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _rank(tensor: TensorInfo) -> int:
    """Dimensions as the file counts them: a matrix with one row is still a matrix."""
    return len(tensor.dims)
