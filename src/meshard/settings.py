"""The settings of a process: their names, laws and values.

In: the settings that each floor registers when it is imported; then the environment, once, and
values that a program gives. Out: the value of a setting, or a refusal that names the law.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, TypeVar, final

from meshard.errors import ArgumentError, ConfigError, did_you_mean, nearest

T = TypeVar("T")

INTERNAL = (
    *("MESHARD_RANK", "MESHARD_LAUNCHER", "MESHARD_KEEPER", "MESHARD_SECRET"),
    "MESHARD_RESTART",
)
"""Variables that are not settings: a secret, which is not printed, and what processes of meshard
set for each other."""
_PREFIX = "MESHARD_"
_TESTS = "MESHARD_TEST_"

SETTINGS: dict[str, Setting[Any]] = {}
"""All settings by name; a setting adds itself when it is made."""


@final
@dataclass(eq=False)
class Setting(Generic[T]):
    """One setting, made at module level by the code that needs it, and read by `value`.

    Attributes:
        name: what `meshard.config` calls it; in capitals after ``MESHARD_`` the variable.
        usual: its default value.
        law: what it may be, as in "``name`` must be ...".
        parse: returns the value of what was given; raises ValueError if it breaks the law.
        at_start: whether only the environment sets it.
        admit: returns the value that an update sets; refuses one that comes at the wrong time.
        read: returns the value of `meshard.config.read`, if that is not `value`.
        value: its value now.
    """

    name: str
    usual: T
    law: str
    parse: Callable[[object], T]
    at_start: bool = False
    admit: Callable[[T], T] | None = None
    read: Callable[[], object] | None = None
    value: T = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.usual
        SETTINGS[self.name] = self

    @property
    def variable(self) -> str:
        """The variable of the environment that sets it."""
        return _PREFIX + self.name.upper()

    def checked(self, given: object) -> T:
        """Return the parsed value of a setting.

        Raises:
            ArgumentError: if the setting cannot have this value.
            ConfigError: if a package that it needs is not installed.
        """
        try:
            return self.parse(given)
        except (ValueError, OverflowError) as error:
            told, meant = str(error), ""
            if isinstance(error, _UnknownName):
                told, meant = "", told
            if not told.endswith((".", "?")):
                told = f"{self.name} must be {self.law}, not {_shown(given)}.{meant}"
            raise ArgumentError(f"config: {told}") from None


def _shown(given: object) -> str:
    try:
        return repr(given)
    except RecursionError:
        return f"a {type(given).__name__} that is nested too deeply"


class _UnknownName(ValueError):
    """A value that is none of some names; its text says which may have been meant."""


def one_of(*names: str) -> tuple[str, Callable[[object], str]]:
    """Return the law and the parser of a setting that is one of some names."""

    def parse(given: object) -> str:
        if not isinstance(given, str) or given not in names:
            raise _UnknownName(did_you_mean(given, names))
        return given

    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}", parse


def switch() -> tuple[str, Callable[[object], bool]]:
    """Return the law and the parser of a setting that is True or False."""
    known = {"1": True, "true": True, "0": False, "false": False}

    def parse(given: object) -> bool:
        if isinstance(given, bool):
            return given
        if not isinstance(given, str) or given.lower() not in known:
            raise ValueError
        return known[given.lower()]

    return "True or False ('1', 'true', '0' or 'false' in the environment)", parse


@final
class Config:
    """The settings, as programs read and change them.

    Attributes:
        epoch: how often a setting was changed; decisions of an earlier epoch may be wrong.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def update(self, name: str, value: object) -> None:
        """Set one setting.

        Raises:
            ConfigError: if there is no such setting, or ``num_devices`` comes after first use.
            ArgumentError: if the value is not one that the setting can have.

        >>> import meshard
        >>> meshard.config.update("default_float", "float32")
        >>> meshard.numpy.ones(2).dtype
        dtype('float32')
        >>> meshard.config.update("default_float", "float64")
        """
        setting = _setting_of(name)
        if setting.at_start:
            raise ConfigError(
                f"config: {name} is read when the program starts; set it by the variable "
                f"{setting.variable}."
            )
        value = setting.checked(value)
        setting.value = value if setting.admit is None else setting.admit(value)
        self.epoch += 1

    def read(self, name: str) -> object:
        """Return a setting's value.

        Raises:
            ConfigError: if there is no such setting.

        >>> import meshard
        >>> meshard.config.read("default_float")
        'float64'
        """
        setting = _setting_of(name)
        return setting.value if setting.read is None else setting.read()


config = Config()


class SettingsModule(ModuleType):
    """A module whose attributes are the settings too: an assignment is an `update`, or refused."""

    def __getattr__(self, name: str) -> object:
        """Return a setting's value, as `read` does."""
        if name in SETTINGS:
            return config.read(name)
        meant = did_you_mean(name, (*SETTINGS, *self.__dict__.get("__all__", ())))
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}.{meant}")

    def __setattr__(self, name: str, value: object) -> None:
        """Set one setting, as `update` does."""
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            config.update(name, value)

    def __dir__(self) -> list[str]:
        """List the settings too."""
        return sorted({*super().__dir__(), *SETTINGS})


def _setting_of(name: object) -> Setting[Any]:
    if isinstance(name, str) and name in SETTINGS:
        return SETTINGS[name]
    asked = f"{name[:80]!r}" if isinstance(name, str) else f"of type {type(name).__name__}"
    meant = did_you_mean(name, SETTINGS)
    rest = f".{meant} The" if meant else "; the"
    raise ConfigError(
        f"config: there is no setting {asked}{rest} settings are {', '.join(sorted(SETTINGS))}."
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the values of all settings: the environment's, or the defaults.

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
                found[setting.name] = setting.checked(text)
            except ArgumentError as error:
                told = str(error).removeprefix("config: ")
                raise ConfigError(f"The variable {variable} is set to {text!r}: {told}") from None
    return found


def set_from(environment: Mapping[str, str]) -> None:
    """Set all settings from an environment, or none of them.

    Raises:
        ConfigError: if a variable has a value that its setting cannot have, or is misspelt.
    """
    for name, value in from_environment(environment).items():
        SETTINGS[name].value = value


def _refuse_unknown(variable: str) -> None:
    """Refuse a misspelt variable; warn about one that is not a setting.

    Raises:
        ConfigError: if a setting has almost the same name.
    """
    known = ", ".join(sorted(s.variable for s in SETTINGS.values()))
    near = nearest(variable.removeprefix(_PREFIX), SETTINGS, 1)
    if near:
        raise ConfigError(
            f"The environment has {variable}, which is not a setting of meshard. Did you mean "
            f"{SETTINGS[near[0]].variable}? The settings are {known}."
        )
    warnings.warn(
        f"The environment has {variable}, which is not a setting of meshard and has no effect. The "
        f"settings are {known}.",
        stacklevel=2,
    )
