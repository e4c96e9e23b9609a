"""Loads models with llama.cpp and prints what its log says about buffer sizes, as JSON. Run by test_sizes.

Arguments: one JSON list of objects with `path`, `n_ctx`, `n_ubatch`, `kv_type`, `snapshots`, `n_outputs`,
`n_sequences`, `full_window`, and `block`: the file's next-token blocks are run, beside its own trunk (`inside`) or that
of another file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import llama_cpp

from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model


def context(model: Model, case: dict, log: NativeLog, **options: Any) -> Context:
    return Context(
        model,
        n_ctx=case["n_ctx"],
        n_batch=case["n_ubatch"],
        max_outputs=case["n_outputs"],
        snapshots=case["snapshots"],
        kv_type=case["kv_type"],
        log=log,
        **options,
    )


def opened(path: Path, case: dict, log: NativeLog) -> tuple[Model, Context]:
    model = Model(path, gpu_layers=0, log=log)
    return model, context(model, case, log)


def measure(log: NativeLog, case: dict) -> dict[str, float]:
    beside = opened(Path(case["block"]), case, log) if case["block"] not in ("", "inside") else None
    if beside:
        log = NativeLog()
        log.install()
    before = len(log.lines)
    model = Model(Path(case["path"]), gpu_layers=0, next_token_blocks=bool(case["block"]), log=log)
    default = llama_cpp.llama_context_default_params
    if not case["full_window"]:
        # The library's own context always keeps the full window; the log of a small one is asked for here.
        params = default()
        params.n_ctx, params.n_batch, params.n_ubatch = case["n_ctx"], case["n_ubatch"], case["n_ubatch"]
        params.swa_full = False
        handle = llama_cpp.llama_init_from_model(model.handle, params)
        llama_cpp.llama_free(handle)
    elif case["block"]:
        trunk = beside[1] if beside else context(model, case, log)
        context(model, case, log, block_of=trunk).close()
        trunk.close()
    else:
        context(model, case, log, branches=case["n_sequences"] > 1).close()
    text = "\n".join(log.lines[before:])
    model.close()
    if beside:
        beside[0].close()

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
