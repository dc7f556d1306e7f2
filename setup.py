"""The C part of the distribution; everything else is in pyproject.toml.

`optional=True` lets a machine without a compiler install: the engine then runs in grouped mode and says so.
PERSONAE_REQUIRE_MIXER=1 (set by the Makefile and CI) makes a broken compiler an error instead.
"""

import os

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "personae.engine._mixer",
            ["runtime/personae/engine/_mixer.c"],
            depends=["runtime/personae/engine/_mixer_kernels.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=[] if os.name == "nt" else ["-O3", "-fno-math-errno", "-ffp-contract=off"],
            py_limited_api=True,
            optional=os.environ.get("PERSONAE_REQUIRE_MIXER") != "1",
        )
    ],
)
