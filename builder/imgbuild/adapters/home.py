"""Where a user's own folders are (XDG Base Directory Specification 0.8): never below the folder we happen to work in.

A checkout that could stand in for the home of its user would say which registries are asked, and with what password.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The home of whoever runs this: `$HOME`, else what the user database says; only an absolute path is one.

    None where there is neither, as in a container that runs under a number without a user. Whether it exists is not
    looked at.
    """
    if (path := environ.get("HOME", "")).startswith("/"):
        return Path(path)
    try:
        path = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return Path(path) if path.startswith("/") else None


def user_folder(variable: str, usual: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """A folder that an XDG variable names, else the usual one below the home; None where there is no home.

    Args:
        variable: `XDG_CACHE_HOME` and the like; a relative path in it is ignored, as the specification has it.
        usual: the path below the home.
        environ: all variables.
    """
    if (path := environ.get(variable, "")).startswith("/"):
        return Path(path)
    base = home(environ)
    return None if base is None else base / usual
