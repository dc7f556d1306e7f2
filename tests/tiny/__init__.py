"""Models small enough to make in a test, and adapters for them, good and bad. What they should answer, llama.cpp says: stock.py."""

from tests.tiny.adapters import write_adapter
from tests.tiny.bad import bad_adapters
from tests.tiny.models import ARCHES, TinyModel, write_model

__all__ = ["ARCHES", "TinyModel", "bad_adapters", "write_adapter", "write_model"]
