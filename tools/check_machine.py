"""Says what is missing before anything is built: Python 3.11, a C and a C++ compiler, cmake, git. Standard library only."""

import shutil
import sys

NEEDED = {"a C compiler": ("cc", "gcc", "clang"), "a C++ compiler": ("c++", "g++", "clang++"), "cmake": ("cmake",), "git": ("git",)}


def main() -> int:
    missing = [name for name, programs in NEEDED.items() if not any(map(shutil.which, programs))]
    if sys.version_info < (3, 11):  # noqa: UP036  this runs before anything has made sure of it
        missing.append(f"Python 3.11 or newer (this is {sys.version.split()[0]}; set PYTHON=/path/to/python3.11)")
    try:
        import ensurepip  # noqa: F401  Debian splits it off: python3-venv
        import venv  # noqa: F401
    except ImportError:
        missing.append("Python's venv module (on Debian: python3-venv)")
    for name in missing:
        print(f"personae: {name} is missing.", file=sys.stderr)
    if missing:
        print("On Debian: apt-get install build-essential cmake git python3-venv python3-dev", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
