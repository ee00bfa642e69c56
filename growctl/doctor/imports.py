"""Whether Python imports growctl's packages from where they are. Imports none of them: they may be someone else's."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from growctl.doctor.check import Check, run_command

ROOT = Path(__file__).resolve().parent.parent.parent
"""Where growctl's packages lie, in a checkout and installed alike."""

PACKAGES = {"growctl": "cli", "stages": "train", "model": "config"}
"""What workers import from, and a module of each."""

_PLACES = """
import importlib, importlib.util, json, os
found = {}
for name, module in %r.items():
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is None:
        # A folder without __init__.py: it hides nothing, unless there is nothing else.
        importlib.import_module(name)
        inner = importlib.util.find_spec(f"{name}.{module}")
        found[name] = os.path.dirname(inner.origin) if inner else list(spec.submodule_search_locations)[0]
    else:
        found[name] = spec and (spec.submodule_search_locations or [spec.origin])[0]
print(json.dumps(found))
"""
"""Says where Python would import each package from. Runs no code of theirs."""


def check_imports() -> Check:
    """What workers started here would import, and what a plain `python -m` would."""
    return imports(places_of_packages(os.environ | {"PYTHONSAFEPATH": "1"}), places_of_packages(os.environ))


def places_of_packages(environment: Mapping[str, str]) -> dict[str, Path | None]:
    """Where a Python started here with `environment` would import each of growctl's packages from."""
    output = run_command([sys.executable, "-c", _PLACES % PACKAGES], dict(environment))
    if output.code:
        raise RuntimeError(output.last_error)
    return {name: Path(place) if place else None for name, place in json.loads(output.stdout).items()}


def imports(worker: Mapping[str, Path | None], plain: Mapping[str, Path | None], root: Path = ROOT) -> Check:
    """Judges what `places_of_packages` gives for a worker and for a plain `python -m` in this directory."""
    others, here = (_others(places, root) for places in (worker, plain))
    missing = [name for name, place in worker.items() if place is None]
    if others:
        fix = "move or rename it, or take its folder off PYTHONPATH; where a package brought it, uninstall that"
        return Check("imports", "failed", f"workers would import {others} in place of growctl's own", fix)
    if missing:
        found = f"workers would not find {', '.join(missing)}"
        return Check("imports", "failed", found, f"install growctl into this Python: pip install -e {root}")
    if here:
        found = f"`python -m` in this directory would import {here} in place of growctl's own"
        fix = "use the growctl command, which does not and whose workers do not; or move or rename it"
        return Check("imports", "warning", found, fix)
    return Check("imports", "ok", f"workers import {', '.join(worker)} from {root}")


def _others(places: Mapping[str, Path | None], root: Path) -> str:
    """Places that are not growctl's."""
    return ", ".join(
        str(place)
        for name, place in places.items()
        if place is not None and os.path.realpath(place) != os.path.realpath(root / name)
    )
