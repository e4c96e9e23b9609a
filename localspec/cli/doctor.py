"""`localspec doctor`: what this installation is and what is missing, to read or to paste into a report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec import __version__, paths
from localspec.cli import output
from localspec.errors import LocalspecError

# The engine is asked in a process of its own: a library that does not load, or that kills whoever loads it,
# is reported. The search path is handed over, since `-c` would put the current folder first.
_PROBE = """
import os, sys
sys.path[:] = [p for p in sys.argv[1].split(os.pathsep) if p]
import dataclasses, json
from localspec.llama import backend
found = {"versions": backend.versions(), "gpu_offload": bool(backend.gpu_backends())}
found["devices"] = [dataclasses.asdict(device) for device in backend.devices()]
print(json.dumps(found))
"""
_TIMEOUT = 60
_LIST_GPUS = {
    "-DGGML_HIP=on": "rocminfo",
    "-DGGML_VULKAN=on": "vulkaninfo --summary",
    "-DGGML_METAL=on": "system_profiler SPDisplaysDataType",
}


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, devices, memory, folders, and what is wrong."""
    report = collect()
    if as_json:
        output.write_json(report)
    else:
        output.write("\n".join(_lines(report)) + "\n")


def collect() -> dict[str, Any]:
    """Everything that `doctor` shows. Whatever cannot be found out is None, with a problem that says why."""
    from localspec.memory.cores import logical_cores

    problems: list[dict[str, str]] = []
    engine = _engine(problems)
    _check_settings(problems)
    ram = _ram()
    return {
        "versions": {
            "localspec": __version__,
            "python": platform.python_version(),
            "textual": _version("textual"),
            "huggingface-hub": _version("huggingface-hub"),
            **engine.pop("versions"),
        },
        "system": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cores": logical_cores(),
            "ram": ram,
        },
        "engine": engine,
        "paths": _paths(problems),
        "catalogue": _catalogue(problems),
        "hub": {
            "endpoint": os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
            "token": bool(os.environ.get("HF_TOKEN")),
            "offline": os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"),
        },
        "terminal": _terminal(),
        "problems": problems,
        "advice": _advice(engine["devices"], ram),
    }


# ---------------------------------------------------------------------- parts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _engine(problems: list[dict[str, str]]) -> dict[str, Any]:
    """The build of llama.cpp and its devices."""
    from localspec.memory.hardware import reinstall_command, seen_gpus

    nothing: dict[str, Any] = {
        "versions": {"llama-cpp-python": _version("llama-cpp-python")},
        "gpu_offload": None,
        "devices": [],
    }
    found, reason = probe()
    if found is None:
        problems.append(
            {"problem": "llama-cpp-python does not start.", "why": reason, "fix": reinstall_command()}
        )
        return nothing
    gpus = seen_gpus()
    on_gpu = any(device["kind"] in ("gpu", "igpu") for device in found["devices"])
    if gpus and not found["gpu_offload"]:
        problems.append(
            {
                "problem": f"There is a GPU ({gpus[0].name}), and this llama-cpp-python is for the CPU only.",
                "why": "Everything runs on the CPU.",
                "fix": reinstall_command(gpus[0]),
            }
        )
    elif found["gpu_offload"] and not on_gpu:
        problems.append(
            {
                "problem": "llama-cpp-python was built for a GPU and sees none.",
                "why": "The driver is not loaded, or does not let this process see the GPU.",
                "fix": _LIST_GPUS.get(gpus[0].cmake_args if gpus else "", "nvidia-smi"),
            }
        )
    return found


def probe(code: str = _PROBE) -> tuple[dict[str, Any] | None, str]:
    """Ask the engine in a child process.

    Returns:
        What it said, or None and the reason.
    """
    command = [sys.executable, "-c", code, os.pathsep.join(sys.path)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"It gave no answer within {_TIMEOUT} seconds."
    except OSError as error:
        return None, f"{error}."
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        try:
            return json.loads(lines[-1]), ""
        except ValueError:
            return None, f"It said {lines[-1][:200]!r}."
    if done.returncode < 0:
        name = (
            signal.Signals(-done.returncode).name
            if -done.returncode in signal.valid_signals()
            else "a signal"
        )
        more = " It was compiled for another kind of processor." if name == "SIGILL" else ""
        return None, f"The process ended with {name}.{more}"
    said = done.stderr.strip().splitlines()
    return None, said[-1][:400] if said else f"Exit code {done.returncode}."


def _ram() -> dict[str, int | None]:
    from localspec.memory.devices import system_memory

    memory = system_memory()
    return {"free": memory.free if memory.known else None, "total": memory.total if memory.known else None}


def _advice(devices: list[dict[str, Any]], ram: dict[str, int | None]) -> list[dict[str, str]]:
    """What a look at the machine says without a measurement: other programs on the GPU, memory nearly full."""
    from localspec.measure import surroundings
    from localspec.measure.advice import advise
    from localspec.measure.seen import from_machine

    # An integrated GPU's memory is the RAM.
    own = [device for device in devices if device["kind"] == "gpu" and device["total"] > 0]
    seen = from_machine(
        surroundings.look(0.2),
        vram_free=sum(device["free"] for device in own),
        vram_total=sum(device["total"] for device in own),
        ram_free=ram["free"] or 0,
        ram_total=ram["total"] or 0,
    )
    return [advice.to_json() for advice in advise(seen)]


def _paths(problems: list[dict[str, str]]) -> dict[str, dict[str, Any]]:
    from localspec.models import hubcache

    folders = {
        "settings": paths.settings_file(),
        "own models.toml": paths.user_models_file(),
        "models": paths.models_dir(),
        "hub cache": hubcache.root(),
        "conversations": paths.conversations_dir(),
        "logs": paths.log_dir(),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, path in folders.items():
        parent = _existing(path)
        writable = os.access(parent, os.W_OK)
        try:
            free: int | None = shutil.disk_usage(parent).free
        except OSError:
            free = None
        found[name] = {"path": str(path), "exists": _exists(path), "free": free, "writable": writable}
        if not writable:
            problems.append(
                {
                    "problem": f"{path} cannot be written.",
                    "why": f"No permission in {parent}.",
                    "fix": f"ls -ld {parent}",
                }
            )
        elif parent != path and not parent.is_dir():
            problems.append(
                {
                    "problem": f"{path} cannot be made.",
                    "why": f"{parent} is no folder.",
                    "fix": f"ls -ld {parent}",
                }
            )
    return found


def _existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next((p for p in (path, *path.parents) if _exists(p)), Path("/"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it that we may not read, a name that is too long
        return False


def _check_settings(problems: list[dict[str, str]]) -> None:
    from localspec.settings import load_settings

    try:
        load_settings()
    except LocalspecError as error:
        problems.append(_problem(error))


def _catalogue(problems: list[dict[str, str]]) -> dict[str, Any]:
    from localspec.models.catalog import load_catalog

    try:
        catalog = load_catalog()
    except LocalspecError as error:
        problems.append(_problem(error))
        return {"file": str(paths.catalog_file()), "models": None}
    if catalog.problem is not None:
        problems.append(_problem(catalog.problem))
    return {"file": str(paths.catalog_file()), "models": len(catalog.file.models)}


def _problem(error: LocalspecError) -> dict[str, str]:
    return {"problem": error.message, "why": error.why, "fix": error.hint}


def _terminal() -> dict[str, Any]:
    size = shutil.get_terminal_size()
    return {
        "stdout_is_terminal": output.is_terminal(sys.stdout),
        "columns": size.columns,
        "lines": size.lines,
        "term": os.environ.get("TERM", ""),
        "colorterm": os.environ.get("COLORTERM", ""),
        "no_color": bool(os.environ.get("NO_COLOR")),
        "encoding": sys.stdout.encoding or "",
    }


# ----------------------------------------------------------------------- text


def _lines(report: dict[str, Any]) -> list[str]:
    from localspec.memory.devices import human

    def row(name: str, text: str) -> str:
        return f"{name:18}{text}"

    versions, system, engine = report["versions"], report["system"], report["engine"]
    first = ("localspec", "python", "llama-cpp-python", "llama.cpp")
    rest = [name for name in versions if name not in first]
    lines = [row(name, versions.get(name) or "?") for name in first]
    lines.append(row("with", ", ".join(f"{name} {versions[name] or 'missing'}" for name in rest)))
    lines.append(row("system", f"{system['platform']}, {system['cores']} cores"))
    offload = {True: "yes, this build can use one", False: "no, this build is for the CPU only", None: "?"}
    lines.append(row("GPU", offload[engine["gpu_offload"]]))
    # Numbered as --draft-device counts them.
    for number, device in enumerate(d for d in engine["devices"] if d["kind"] in ("gpu", "igpu")):
        known = device["total"] > 0
        free, total = (human(device[key] if known else None) for key in ("free", "total"))
        name = ", ".join(dict.fromkeys(filter(None, (device["name"], device["description"]))))
        lines.append(row(f"  gpu{number}", f"{name}: {free} free of {total}"))
    ram = system["ram"]
    lines.append(row("RAM", f"{human(ram['free'])} free of {human(ram['total'])}"))
    for name, entry in report["paths"].items():
        state = "" if entry["exists"] else "  (not made yet)"
        space = f"  ({output.size(entry['free'])} free)" if name == "hub cache" else ""
        lines.append(row(name, f"{entry['path']}{space}{state}"))
    catalogue, hub, terminal = report["catalogue"], report["hub"], report["terminal"]
    count = "not readable" if catalogue["models"] is None else f"{catalogue['models']} models"
    lines.append(row("catalogue", f"{catalogue['file']}  ({count})"))
    extras = [word for word, on in (("token set", hub["token"]), ("offline", hub["offline"])) if on]
    lines.append(row("hub", ", ".join([hub["endpoint"], *extras])))
    where = (
        f"{terminal['columns']}x{terminal['lines']}"
        if terminal["stdout_is_terminal"]
        else "none (output is piped)"
    )
    kind = " ".join(filter(None, (terminal["term"], terminal["colorterm"], terminal["encoding"])))
    lines.append(row("terminal", f"{where}  {kind}{'  NO_COLOR' if terminal['no_color'] else ''}"))
    lines.append("")
    for item in report["problems"]:
        lines += [f"Problem: {item['problem']}", *([f"  {item['why']}"] if item["why"] else [])]
        lines += [f"  Try: {item['fix']}"] if item["fix"] else []
    for item in report["advice"]:
        lines += [f"Advice: {item['seen']}", f"  {item['cause']}", f"  Try: {item['command']}"]
    if not report["problems"]:
        lines.append("No problems found.")
    return lines
