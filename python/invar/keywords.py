"""Keywords that callers may use: which are known, which mean nothing here, which are refused."""
from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for the first name of `given` that is not in `known`, with the nearest one that is."""
    names = list(known)
    for name in given:
        if name in names:
            continue
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{where} has no keyword {name!r}{hint}")


def refuse_values(where: str, given: Mapping[str, object], refused: Mapping[str, tuple[tuple[object, ...], str]]) -> None:
    """Raises ValueError where a keyword of `refused` has a value that is none of those it lists."""
    for name, (harmless, why) in refused.items():
        if name in given and not any(given[name] == value for value in harmless):
            raise ValueError(f"{where}: {name}={given[name]!r} is not supported: {why}")
