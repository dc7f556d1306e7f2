"""Personae: one model, many personae. NPC dialogue in which every character speaks under its own LoRA adapter, all in one decode."""

__version__ = "0.1.0"
