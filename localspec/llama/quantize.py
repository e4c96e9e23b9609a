"""Making a draft out of a target: the same model in a coarser quantisation."""

from __future__ import annotations

import os
from pathlib import Path

import llama_cpp

from localspec.errors import LoadError, UsageError
from localspec.llama import backend
from localspec.llama.log import NativeLog

# llama_ftype by the word that people use.
FTYPES: dict[str, int] = {
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip


def requantize(source: Path, destination: Path, ftype: str) -> None:
    """Write `source` in another quantisation. The file appears complete or not at all.

    Args:
        source: A GGUF model, quantised or not.
        destination: The file to write.
        ftype: A word of `FTYPES`.

    Raises:
        UsageError: An unknown word.
        LoadError: llama.cpp could not read or write.
    """
    if ftype.upper() not in FTYPES:
        raise UsageError(f"There is no quantisation {ftype!r} to write.", why=f"Known: {', '.join(FTYPES)}.")
    backend.start()
    log = NativeLog()
    log.install()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[ftype.upper()]
    params.allow_requantize = True
    partial = destination.with_name(destination.name + ".partial")
    try:
        failed = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(partial), params)
        if failed:
            raise LoadError(
                f"A {ftype} copy of {source.name} could not be made.",
                why=f"llama.cpp said: {log.last_error or 'no reason'}.",
            )
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)
