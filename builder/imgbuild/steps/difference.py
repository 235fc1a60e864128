"""Where two documents differ first: for errors and findings that name the place, and not only that there is one."""

from __future__ import annotations

from typing import Any


def first_difference(recorded: Any, found: Any, path: str) -> tuple[str, object, object]:
    """The path of the first field that differs, and its two values; rows are counted before they are compared.

    Args:
        recorded: a document as plain values (`model.decode.builtins`).
        found: another one, which is not equal to it.
        path: what both are called. Fields come in the order of the first; rows with a name are called by it.
    """
    if isinstance(recorded, dict) and isinstance(found, dict):
        name = next(name for name in {**recorded, **found} if recorded.get(name) != found.get(name))
        return first_difference(recorded.get(name), found.get(name), f"{path}.{name}")
    if isinstance(recorded, list) and isinstance(found, list):
        if len(recorded) != len(found):
            return path, f"{len(recorded)} rows", f"{len(found)} rows"
        index = next(index for index, row in enumerate(recorded) if row != found[index])
        row = recorded[index]
        label = row.get("name", index) if isinstance(row, dict) else index
        return first_difference(row, found[index], f"{path}[{label}]")
    return path, "nothing" if recorded is None else recorded, "nothing" if found is None else found
