"""Tries growctl on real services, started on this machine and reachable from it alone.

Run by `make test-services`. Needs root, for network namespaces; skips by name each service that is not installed.
"""

import argparse
import importlib
import pkgutil
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FrameType

import tests.services
from tests.services.namespaces import refusal, run_in_namespaces
from tests.services.service import Service, run_checks, skipped
from tests.services.table import markdown, print_table


def services() -> dict[str, Service]:
    """Every service by the name of its module."""
    found = [module.name for module in pkgutil.iter_modules(tests.services.__path__)]
    names = [name for name in found if name != "__main__" and not name.startswith("test_")]
    modules = {name: importlib.import_module(f"tests.services.{name}") for name in names}
    return {name: module.SERVICE for name, module in modules.items() if hasattr(module, "SERVICE")}


def main() -> int:
    """Runs the checks. Returns the exit code: 1 if one failed."""
    known = services()
    parser = argparse.ArgumentParser(
        prog="python -m tests.services", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"services to try: {', '.join(known)}; default: all")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the checks with this in their names alone")
    parser.add_argument("--docs", action="store_true", help="print the table in Markdown too, for docs/clusters.md")
    parser.add_argument("--keep", action="store_true", help="keep the services' files, also if every check passed")
    parser.add_argument("--inside", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - known.keys()):
        parser.error(f"no service {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = {
        name: replace(service, checks=tuple(check for check in service.checks if options.only in check[0]))
        for name, service in known.items()
        if name in options.names or not options.names
    }
    if options.inside:
        return _run(chosen, options.inside, options.docs)
    if reason := refusal():
        print_table([result for service in chosen.values() for result in skipped(service, reason)])
        return 0
    return _run_inside(sys.argv[1:], options.keep)


def _run_inside(arguments: list[str], keep: bool) -> int:
    """Runs this script again in namespaces of its own. Removes the services' files if every check passed."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="growctl-services-"))  # short: paths of sockets may have 107 characters
    folder.chmod(0o755)  # services with users of their own
    code = 0
    try:
        code = run_in_namespaces([sys.executable, "-m", "tests.services", "--inside", str(folder), *arguments])
    except KeyboardInterrupt:
        print("interrupted: every service is stopped", file=sys.stderr)
        code = 130
    finally:
        if keep or code not in (0, 130):
            print(f"the services' files are in {folder}")
        else:
            shutil.rmtree(folder)
    return code


def _run(chosen: dict[str, Service], folder: Path, docs: bool) -> int:
    results = []
    for name, service in chosen.items():
        (folder / name).mkdir()
        results += run_checks(service, folder / name)
    print_table(results)
    if docs:
        print(markdown(results))
    return int(any(result.outcome == "failed" for result in results))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
