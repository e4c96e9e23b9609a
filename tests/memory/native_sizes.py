"""Loads models with llama.cpp and prints what its log says about buffer sizes, as JSON. Run by test_sizes.

Arguments: one JSON list of objects with `path`, `n_ctx`, `n_ubatch`, `kv_type`, `snapshots`, `full_window`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import llama_cpp

from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model


def measure(log: NativeLog, case: dict) -> dict[str, float]:
    before = len(log.lines)
    model = Model(Path(case["path"]), gpu_layers=0, log=log)
    default = llama_cpp.llama_context_default_params
    if not case["full_window"]:
        # The library's own context always keeps the full window; the log of a small one is asked for here.
        params = default()
        params.n_ctx, params.n_batch, params.n_ubatch = case["n_ctx"], case["n_ubatch"], case["n_ubatch"]
        params.swa_full = False
        handle = llama_cpp.llama_init_from_model(model.handle, params)
        llama_cpp.llama_free(handle)
    else:
        Context(
            model,
            n_ctx=case["n_ctx"],
            n_batch=case["n_ubatch"],
            max_outputs=case["n_outputs"],
            snapshots=case["snapshots"],
            kv_type=case["kv_type"],
            log=log,
        ).close()
    text = "\n".join(log.lines[before:])
    model.close()

    def total(what: str) -> float:
        return sum(float(size) for size in re.findall(rf"{what} buffer size =\s*([\d.]+) MiB", text))

    return {"weights": total(" model"), "kv": total("KV"), "state": total("RS"), "compute": total("compute")}


def main() -> None:
    results = []
    for case in json.loads(sys.argv[1]):
        log = NativeLog()
        log.install()
        results.append(measure(log, case))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
