"""Compares what this CPU can do with what the llama.cpp build contains, and says how to build it better. Runs nothing native.

The switches are those of tools/build_flags.py, which `make` builds with; that one runs before anything is installed, so it is no import.
A native build (-march=native) is not advised on x86: where the CPU has AMX its code dies at the first decode (llama.cpp PR #26954).
"""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BASIC = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2"}
"""CPU flag -> name in the build's description, which is also the ending of ggml's switch. On by default."""
FURTHER = {"avx512_vnni": "AVX512_VNNI", "avx512vbmi": "AVX512_VBMI", "avx512_bf16": "AVX512_BF16", "avx_vnni": "AVX_VNNI"}
AVX512 = frozenset({"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"})  # ggml's one switch needs them all


def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Empty where the system does not tell (macOS, Windows, ARM)."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), frozenset())


def build_features(description: str) -> frozenset[str]:
    """The features that llama.cpp's description of itself says are on: 'CPU : AVX2 = 1 | FMA = 1'."""
    parts = (part.rsplit(":", 1)[-1].split("=") for part in description.split("|"))
    return frozenset(pair[0].strip() for pair in parts if len(pair) == 2 and pair[1].strip() == "1")


def wanted(flags: frozenset[str]) -> list[str]:
    """Features of a build that this CPU could use."""
    known = [name for flag, name in BASIC.items() if flag in flags]
    if flags >= AVX512:
        known.append("AVX512")
    return known + [name for flag, name in FURTHER.items() if flag in flags and (flags >= AVX512 or flag == "avx_vnni")]


def missing(flags: frozenset[str], features: frozenset[str]) -> list[str]:
    """What the CPU has and the build leaves out."""
    return [name for name in wanted(flags) if name not in features]


def cmake_args(flags: frozenset[str]) -> str:
    """CMAKE_ARGS of the build for this CPU."""
    args = ["-DLLAVA_BUILD=OFF"]
    if flags:
        args.append("-DGGML_NATIVE=OFF")
        known = wanted(flags)
        if not flags >= {"avx2", "fma", "f16c", "bmi2"}:
            return " ".join(args + [f"-DGGML_{name}={'ON' if name in known else 'OFF'}" for name in BASIC.values()])
        args += [f"-DGGML_{name}=ON" for name in known if name not in BASIC.values()]
    return " ".join(args)


def rebuild_command(flags: frozenset[str], version: str) -> str:
    return f'CMAKE_ARGS="{cmake_args(flags)}" pip install --force-reinstall --no-binary llama-cpp-python llama-cpp-python=={version}'
