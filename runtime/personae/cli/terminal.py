"""Decides how failures of client and service, and of the terminal itself, are told there. Knows no NPC."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from personae.cli.printable import printable as printable
from personae.cli.private_service import POST_MORTEM_S, PrivateService
from personae.errors import AskedWrong, WorldFailed
from personae_client import PersonaeError as ClientError

COLOURS = ("bright_red", "bright_blue", "bright_green", "bright_magenta", "bright_yellow", "bright_cyan")

OPERATOR_ERRORS = ("connection_failed", "wrong_server", "unauthorized", "unsupported_version")  # the command line was wrong


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextlib.contextmanager
def forgiving_streams() -> Iterator[None]:
    """Characters that the terminal cannot show or send become question marks; `... | head` ends us without a word."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush fails again


@contextlib.contextmanager
def client_failures() -> Iterator[None]:
    """Failures of the client as ours, so that `personae` shows them in its way: one sentence, the hint, an exit code."""
    try:
        yield
    except ClientError as error:
        if error.code in OPERATOR_ERRORS:
            raise AskedWrong("bad_arguments", error.message, error.hint) from error
        code = error.code if error.code != "connection_lost" else "service_lost"
        raise WorldFailed(code, error.message, error.hint) from error


@contextlib.contextmanager
def watched(service: PrivateService | None) -> Iterator[None]:
    """A lost connection is only the symptom when our own service has died: then that is what is told."""
    try:
        yield
    except ClientError as error:
        if service is not None:
            service.check(POST_MORTEM_S if error.code == "connection_lost" else 0.0)
        raise
