"""The wire: what a message is, as bytes and as meaning. Knows no socket, session or clock. bindings/PROTOCOL.md is its prose."""

from __future__ import annotations

PROTOCOL_VERSION = 1

__all__ = ["PROTOCOL_VERSION"]
