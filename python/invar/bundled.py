"""The models that Invar brings along."""
import os
from pathlib import Path


def _homes() -> list[Path]:
    """Where a folder `models` may be: INVAR_HOME, else beside the package, in the repository, in an installation."""
    if home := os.environ.get("INVAR_HOME"):
        return [Path(home)]
    package = Path(__file__).resolve().parent
    return [package / "share", package.parent.parent, Path("/usr/share/invar")]


def found(name: str) -> str:
    """The directory of `name`, "models/...", among the models that Invar brings along; else `name` as it is."""
    if name.startswith("models/") and not os.path.exists(name):
        for home in _homes():
            if (home / name / "config.json").exists():
                return str(home / name)
    return name


def bundled_model() -> str:
    """The directory of the model that Invar brings along.

    Raises FileNotFoundError where there is none.
    """
    directory = found("models/story")
    if not os.path.exists(directory):
        raise FileNotFoundError("expected models/story beside the package or in INVAR_HOME, found none")
    return directory
