"""The table by which movers are chosen: read by one process, received by all.

In: ``MESHARD_TABLE``, a file of JSON or JSON itself. Out: a `Table`.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from meshard.errors import ConfigError
from meshard.runtime.transport import Table

__all__ = ["read_table"]

_NAME = "MESHARD_TABLE"


def read_table() -> Table:
    """Return the table that ``MESHARD_TABLE`` gives; what it leaves out is as usual.

    Raises:
        ConfigError: if it is no table: not a JSON object, or with unknown names or other values
            than whole numbers above 0, or true or false for ``memory``.
    """
    text = os.environ.get(_NAME, "").strip()
    if not text:
        return Table()
    try:
        given = json.loads(text if text.startswith("{") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{_NAME}={text!r} is neither a JSON object nor a file that holds one: {error}."
        ) from error
    usual: dict[str, Any] = {f.name: f.default for f in fields(Table)}
    if not isinstance(given, dict) or not given.keys() <= usual.keys():
        wrong = given if not isinstance(given, dict) else sorted(given.keys() - usual.keys())
        raise ConfigError(f"{_NAME} is a JSON object with the names {list(usual)}, not {wrong}.")
    for name, value in given.items():
        switch = isinstance(usual[name], bool)
        if isinstance(value, bool) if switch else type(value) is int and value >= 1:
            continue
        law = "true or false" if switch else "a whole number of bytes above 0"
        raise ConfigError(f"{_NAME}: {name} is {law}, not {json.dumps(value)}.")
    return Table(**given)
