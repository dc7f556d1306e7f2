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

    @classmethod
    def of(cls, header: GgufHeader) -> BaseShapes:
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
        )

    def with_sites(self, names: Iterable[str]) -> BaseShapes:
        """The same base where only these matrices may be adapted. Names that are no matrices of it are dropped."""
        return replace(self, sites=frozenset(names) & self.matrices.keys())


def _rank(tensor: TensorInfo) -> int:
    """Dimensions as the file counts them: a matrix with one row is still a matrix."""
    return len(tensor.dims)
