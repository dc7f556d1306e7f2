"""Prints the CMAKE_ARGS with which llama-cpp-python is built for this machine.

A native build (-march=native) takes AMX where the CPU has it, and that code dies at the first decode (llama.cpp PR #26954, issues
#28756 and #28328). So native is off and what the CPU can do is named: AVX2, FMA and F16C are ggml's defaults then, and the AVX-512
family is added where it is there. The vision tools are left out; nothing here uses them.
"""

from pathlib import Path

# CPU flag in /proc/cpuinfo -> ggml's switch. AVX-512 needs its basic four, which ggml's one switch turns on together.
BASIC_AVX512 = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
FURTHER = {
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_bf16": "GGML_AVX512_BF16",
    "avx_vnni": "GGML_AVX_VNNI",
}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Empty where there is no such file (macOS, Windows): ggml's defaults then."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())


def build_flags(flags: set[str]) -> list[str]:
    args = ["-DLLAVA_BUILD=OFF"]
    if not flags:
        return args  # arm64 and others: native is right, AMX is x86's trap
    args.append("-DGGML_NATIVE=OFF")
    if not {"avx2", "fma", "f16c", "bmi2"} <= flags:
        return args + [f"-DGGML_{name}={'ON' if name.lower() in flags else 'OFF'}" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")]
    if flags >= BASIC_AVX512:
        args.append("-DGGML_AVX512=ON")
    return args + [f"-D{switch}=ON" for flag, switch in FURTHER.items() if flag in flags and (flags >= BASIC_AVX512 or flag == "avx_vnni")]


if __name__ == "__main__":
    print(" ".join(build_flags(cpu_flags())))
