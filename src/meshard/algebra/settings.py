"""The settings of a process: one table, which says what each is called, holds and means.

In: the environment, or a value that a program gives. Out: the value, or a refusal that says what
the setting may be. All variables are read when meshard is imported, before anything else starts, so
that a wrong one ends a process while nobody waits for it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import final

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, ConfigError

MOST_DEVICES = 65_536
"""Devices of one process: far more than are of use, far fewer than memory has room for."""
INTERNAL = ("MESHARD_RANK", "MESHARD_LAUNCHER")
"""Variables by which processes of meshard tell each other something; nobody else sets them."""
_PREFIX = "MESHARD_"
_TESTS = "MESHARD_TEST_"
_ALIKE = 0.75


@final
@dataclass(frozen=True, slots=True)
class Table:
    """The sizes that decide how something is moved, in bytes; the same in all processes of a job.

    Attributes:
        packed: boxes below it that go to the same peer are packed into one message.
        slab: the most bytes of one message; larger boxes are cut.
        window: the most bytes that are on their way between two processes in each direction.
        typed: a strided box whose runs have at least so many bytes is sent as an MPI datatype, one
            with shorter runs is packed.
        pushed: boxes from it on are written straight into the memory of a neighbour on the host.
        replicas: from it on replicas on a host are one memory.
        memory: whether the processes of a host reach each other through memory at all.
    """

    packed: int = 1 << 16
    slab: int = 1 << 22
    window: int = 1 << 24
    typed: int = 1 << 6
    pushed: int = 1 << 16
    replicas: int = 1 << 18
    memory: bool = True


@final
@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: what `meshard.config` calls it; in capitals after ``MESHARD_`` the variable.
        usual: its value where nobody sets it.
        law: what it may be, as in "``name`` is ...".
        read: returns the value of what was given; raises ValueError where it breaks the law.
        meaning: what it is for.
        at_start: whether only the environment sets it.
    """

    name: str
    usual: object
    law: str
    read: Callable[[object], object]
    meaning: str
    at_start: bool = False

    @property
    def variable(self) -> str:
        """The variable of the environment that sets it."""
        return _PREFIX + self.name.upper()


def _one_of(*names: str) -> tuple[str, Callable[[object], object]]:
    """Return the law and the reader of a setting that is one of some names."""

    def read(value: object) -> object:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}", read


def _count(value: object) -> object:
    number = value if type(value) is int else int(value) if isinstance(value, str) else 0
    if not 1 <= number <= MOST_DEVICES:
        raise ValueError
    return number


def _seconds(value: object) -> object:
    number = float(value) if isinstance(value, (str, int, float)) else math.nan
    if not 0 < number < math.inf or isinstance(value, bool):
        raise ValueError
    return number


def _device(value: object) -> object:
    """Accept a name; whether there is such a device is known when the devices are."""
    if value in (None, "cpu"):
        return None
    if not isinstance(value, str):
        return value
    platform, _, number = value.partition(":")
    if platform != "cpu" or not number.isdecimal():
        raise ValueError
    return f"cpu:{int(number)}"


def _switch(value: object) -> object:
    known = {"1": True, "true": True, "0": False, "false": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError
    return known[value.lower()]


def _compiler(value: object) -> object:
    if value == "numpy":
        return "numpy"
    from importlib.metadata import entry_points  # slow to import

    known = sorted({e.name for e in entry_points(group="meshard.compilers")})
    if value not in known:
        raise ValueError(
            f"jit_compiler is 'numpy', or one of {', '.join(map(repr, known))}, which then runs "
            f"what jit fuses on large blocks; got {value!r}."
        )
    if value == "xla" and find_spec("jax") is None:
        raise ConfigError(
            "config: jit_compiler 'xla' needs JAX, which is not installed. Install it with: "
            'pip install "meshard[jax]"'
        )
    return value


def _host(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _table(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError
    text = value.strip()
    try:
        given = json.loads(text if text.startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"table is a JSON object or a file that holds one, and {text!r} is neither: {error}."
        ) from error
    usual: dict[str, object] = {f.name: f.default for f in fields(Table)}
    if not isinstance(given, dict) or not given.keys() <= usual.keys():
        wrong = given if not isinstance(given, dict) else sorted(given.keys() - usual.keys())
        raise ValueError(f"table is a JSON object with the names {list(usual)}, not {wrong}.")
    for name, size in given.items():
        switch = isinstance(usual[name], bool)
        if isinstance(size, bool) if switch else type(size) is int and size >= 1:
            continue
        law = "true or false" if switch else "a positive integer, a number of bytes"
        raise ValueError(f"{name} in table is {law}, not {json.dumps(size)}.")
    return Table(**given)


SETTINGS: dict[str, Setting] = {
    s.name: s
    for s in (
        Setting(
            "num_devices",
            None,
            f"an integer from 1 to {MOST_DEVICES}",
            lambda value: None if value is None else _count(value),
            "devices of this process, before first use; None: one per core, one under mpiexec",
        ),
        Setting(
            "default_float",
            "float64",
            *_one_of("float32", "float64"),
            "dtype of floats that nothing else decides",
        ),
        Setting(
            "default_device",
            None,
            "a device of this process, its name such as 'cpu:3', 'cpu' or None",
            _device,
            "where new arrays are placed; None: on the first device of this process",
        ),
        Setting(
            "jit_compiler",
            "numpy",
            "'numpy' or 'xla'",
            _compiler,
            "what runs fused work on large blocks: numpy or xla",
        ),
        Setting(
            "check",
            "hash",
            *_one_of("off", "hash", "full"),
            "how the operations of processes are compared: ``off``, ``hash``, ``full``",
        ),
        Setting(
            "parallel_functions_output_gda",
            False,
            "True or False ('1', 'true', '0' or 'false' in the environment)",
            _switch,
            "whether jit returns a `GlobalDeviceArray` for each array",
        ),
        Setting(
            "timeout",
            300.0,
            "a positive, finite number of seconds",
            _seconds,
            "seconds that a process waits for another",
            at_start=True,
        ),
        Setting(
            "stopped",
            "wait",
            *_one_of("wait", "fail"),
            "what is done about a process of this host that is stopped (SIGSTOP, Ctrl-Z): "
            "``wait``, until it goes on or the timeout, or ``fail``, at once",
            at_start=True,
        ),
        Setting(
            "host",
            None,
            "a name",
            _host,
            "this host's name, by which one host can play several",
            at_start=True,
        ),
        Setting(
            "table",
            Table(),
            "a JSON object of sizes, or a file that holds one",
            _table,
            "the sizes that decide how bytes go between processes; those of process 0 hold",
            at_start=True,
        ),
    )
}


def setting_of(name: object) -> Setting:
    """Return a setting.

    Raises:
        ConfigError: if there is no such setting.
    """
    if isinstance(name, str) and name in SETTINGS:
        return SETTINGS[name]
    near = _nearest(name) if isinstance(name, str) else None
    meant = f"; did you mean {near!r}?" if near else ";"
    raise ConfigError(
        f"config: there is no setting {shown(name)}{meant} the settings are "
        f"{', '.join(sorted(SETTINGS))}."
    )


def checked(setting: Setting, value: object) -> object:
    """Return the value of what was given for a setting.

    Raises:
        ArgumentError: if the setting cannot have it.
        ConfigError: if something that it needs is not installed.
    """
    try:
        return setting.read(value)
    except (ValueError, OverflowError) as error:
        told = str(error) if str(error).endswith(".") else ""
        told = told or f"{setting.name} is {setting.law}, not {value!r}."
        raise ArgumentError(f"config: {told}") from None


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the values of all settings, of which the environment sets some.

    An empty variable sets nothing.

    Raises:
        ConfigError: if a variable has a value that its setting cannot have, or is misspelt.
    """
    known = {s.variable: s for s in SETTINGS.values()}
    found = {s.name: s.usual for s in SETTINGS.values()}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(_PREFIX) or variable.startswith((*INTERNAL, _TESTS)):
            continue
        if variable not in known:
            _refuse_unknown(variable)
        elif text:
            setting = known[variable]
            try:
                found[setting.name] = checked(setting, text)
            except ArgumentError as error:
                told = str(error).removeprefix("config: ")
                raise ConfigError(f"The variable {variable} is set to {text!r}: {told}") from None
    return found


def _nearest(name: str) -> str | None:
    near = get_close_matches(name.lower(), list(SETTINGS), 1, _ALIKE)
    return near[0] if near else None


def _refuse_unknown(variable: str) -> None:
    """Refuse a variable that is misspelt; warn of one that means nothing to meshard.

    Raises:
        ConfigError: if a setting is called almost so.
    """
    known = ", ".join(sorted(s.variable for s in SETTINGS.values()))
    near = _nearest(variable.removeprefix(_PREFIX))
    if near is not None:
        raise ConfigError(
            f"The environment has {variable}, which is not a setting of meshard; did you mean "
            f"{SETTINGS[near].variable}? The settings are {known}."
        )
    warnings.warn(
        f"The environment has {variable}, which is not a setting of meshard and has no effect. The "
        f"settings are {known}.",
        stacklevel=2,
    )
