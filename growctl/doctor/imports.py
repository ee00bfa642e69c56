"""Checks that Python would import growctl's packages from its own installation, without importing them."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from growctl.doctor.check import Check, run_command

ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder that contains growctl's packages, both in a checkout and installed."""

PACKAGES = {"growctl": "cli", "stages": "train", "model": "config"}
"""The packages that workers import, and a module of each."""

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
"""Prints where Python would import each package from, without running the packages' code."""


def check_imports() -> Check:
    """Checks where workers started here would import growctl's packages from, and where a plain `python -m` would."""
    return imports(places_of_packages(os.environ | {"PYTHONSAFEPATH": "1"}), places_of_packages(os.environ))


def places_of_packages(environment: Mapping[str, str]) -> dict[str, Path | None]:
    """Where a Python started here with `environment` would import each of growctl's packages from; None if nowhere."""
    output = run_command([sys.executable, "-c", _PLACES % PACKAGES], dict(environment))
    if output.code:
        raise RuntimeError(output.last_error)
    return {name: Path(place) if place else None for name, place in json.loads(output.stdout).items()}


def imports(worker: Mapping[str, Path | None], plain: Mapping[str, Path | None], root: Path = ROOT) -> Check:
    """Judges the `places_of_packages` of a worker and of a plain `python -m` in this directory."""
    others, here = (_others(places, root) for places in (worker, plain))
    missing = [name for name, place in worker.items() if place is None]
    if others:
        fix = "move or rename it, or remove its folder from PYTHONPATH; if a package installed it, uninstall that"
        return Check("imports", "failed", f"workers would import {others} instead of growctl's own", fix)
    if missing:
        found = f"workers would not find {', '.join(missing)}"
        return Check("imports", "failed", found, f"install growctl into this Python: pip install -e {root}")
    if here:
        found = f"`python -m` in this directory would import {here} instead of growctl's own"
        fix = "use the growctl command, which together with its workers ignores this directory; or move or rename it"
        return Check("imports", "warning", found, fix)
    return Check("imports", "ok", f"workers import {', '.join(worker)} from {root}")


def _others(places: Mapping[str, Path | None], root: Path) -> str:
    """The places that are not growctl's, joined by commas."""
    return ", ".join(
        str(place)
        for name, place in places.items()
        if place is not None and os.path.realpath(place) != os.path.realpath(root / name)
    )
