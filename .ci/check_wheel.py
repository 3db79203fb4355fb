"""Checks that a wheel holds the whole package: `check_wheel.py PACKAGE_FOLDER WHEEL`."""

import sys
import zipfile
from pathlib import Path


def main(package: Path, wheel: Path) -> None:
    """Ends with an error that lists what the wheel lacks.

    Args:
        package: Folder of the package in the checkout.
        wheel: Wheel that was built from it.
    """
    expected = {str(path.relative_to(package.parent)) for path in [*package.rglob("*.py"), *package.rglob("py.typed")]}
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    missing = sorted(expected - files)
    foreign = sorted(name for name in files if not name.startswith((f"{package.name}/", f"{package.name}-")))
    if missing or foreign or f"{package.name}/py.typed" not in files:
        sys.exit(f"{wheel.name} lacks {missing} and has {foreign} beside the package; py.typed must be in it")
    sys.stdout.write(f"{wheel.name}: {len(expected)} files of the package, all there\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
