"""Says whether a port of this machine is free, and who has it. Asks the system; changes nothing."""

from __future__ import annotations

import socket
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """'process 1234 (python)'; "" where the system does not tell, or not us."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in PROC.glob("[0-9]*") if inodes else ():
        try:
            if any(str(link.readlink()) in inodes for link in (folder / "fd").iterdir()):
                return f"process {folder.name} ({(folder / 'comm').read_text('utf-8', 'replace').strip()})"
        except OSError:
            continue  # another user's, or gone
    return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        rows = (line.split() for line in lines)
        found |= {row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}
    return found
