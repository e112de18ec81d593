"""The verbs of values that have a picture. Floors above make the pictures, and say how at import.

In: a value. Out: HTML for notebooks and files, SVG.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from meshard.algebra.arguments import choice_of, path_of


class Picture(Protocol):
    """What is made of a value when somebody looks."""

    def page(self) -> str:
        """Return a whole page."""

    def fragment(self) -> str:
        """Return one element for a notebook."""

    def svg(self, theme: str | None) -> str:
        """Return the drawing, in the colours of a theme or in those of the page."""

    def write(self, path: Path, text: str, what: str) -> None:
        """Write a file, all of it or nothing."""


class _Installed:
    """What the floor above has installed, once, at import."""

    def __init__(self) -> None:
        self.pictured: Callable[[object], Picture] | None = None


_INSTALLED = _Installed()


def install_pictures(pictured: Callable[[object], Picture]) -> None:
    """Install the function that makes the picture of a value."""
    _INSTALLED.pictured = pictured


def picture_of(value: object) -> Picture:
    """Return the picture of a value."""
    assert _INSTALLED.pictured is not None, "import meshard, which installs it"
    return _INSTALLED.pictured(value)


class HasPage:
    """A value that is shown as a page, and in a notebook as an element of its own."""

    __slots__ = ()

    def to_html(self) -> str:
        """Return an HTML page of this, in one piece: nothing is loaded from elsewhere."""
        return picture_of(self).page()

    def save_html(self, path: str | Path) -> Path:
        """Write the page of `to_html` to a file.

        Returns:
            The path written.

        Raises:
            ArgumentError: if ``path`` is not a path.
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        what = f"{type(self).__name__}.save_html"
        target = path_of(path, what)
        picture_of(self).write(target, self.to_html(), what)
        return target

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return picture_of(self).fragment()


class HasDrawing(HasPage):
    """A value whose picture is one drawing."""

    __slots__ = ()

    def to_svg(self, *, theme: str | None = None) -> str:
        """Return the drawing as one ``<svg>`` element, in one piece.

        Args:
            theme: ``"light"`` or ``"dark"``; None for what the page says that it is put into, or
                where none says, for what the reader's system is.

        Raises:
            ArgumentError: if there is no such theme.
        """
        what = f"{type(self).__name__}.to_svg"
        if theme is not None:
            choice_of(theme, ("light", "dark"), what, "theme")
        return picture_of(self).svg(theme)

    def save_svg(self, path: str | Path, *, theme: str | None = None) -> Path:
        """Write the drawing of `to_svg` to a file.

        Args:
            path: the file.
            theme: as of `to_svg`; a file that is shown as an image knows no page around it.

        Returns:
            The path written.

        Raises:
            ArgumentError: if ``path`` is not a path.
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        what = f"{type(self).__name__}.save_svg"
        target = path_of(path, what)
        picture_of(self).write(target, self.to_svg(theme=theme), what)
        return target
