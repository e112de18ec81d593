"""Values with a picture: a page of parts, or one drawing.

In: a value that says its title and the parts of its picture, or a mesh or sharding of the floor
below. Out: what `HasPage` and `HasDrawing` ask for. What makes pictures is imported when somebody
looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, final

from meshard.algebra.pictured import HasDrawing, HasPage, install_pictures

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup


class Pictured(HasPage):
    """A value that is shown as a page: define `_title` and `_parts`."""

    __slots__ = ()

    def _title(self) -> str:
        """Return the headline, without markup."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Markup]:
        """Yield what stands below the headline."""
        raise NotImplementedError


class Drawn(Pictured, HasDrawing):
    """A value whose picture is one drawing: define `_title` and `_svg`, and more in `_parts`."""

    __slots__ = ()

    def _svg(self) -> Markup:
        """Return the drawing, for a page that has the style sheet."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Markup]:
        """Yield the drawing."""
        from meshard.plan.show.page import wide

        yield wide(self._svg())


class Printed(Pictured):
    """A value whose page is what it prints, in a monospaced font."""

    __slots__ = ()

    def _title(self) -> str:
        """Return the name of its class."""
        return type(self).__name__

    def _parts(self) -> Iterator[Markup]:
        """Yield its print."""
        from meshard.plan.show.page import preformatted

        yield preformatted(str(self))


class _Shown(Protocol):
    """What shows a value: the value itself, or what stands for a mesh or a sharding."""

    def _title(self) -> str: ...
    def _parts(self) -> Iterator[Markup]: ...


class _ShownDrawn(_Shown, Protocol):
    def _svg(self) -> Markup: ...


@final
class _Sheet:
    """The picture of a value."""

    def __init__(self, value: _Shown) -> None:
        self._value = value

    def fragment(self) -> str:
        """Return one element, with its style sheet."""
        from meshard.plan.show.page import fragment

        return fragment(self._value._title(), *self._value._parts())

    def page(self) -> str:
        """Return a whole page around the element that a notebook shows."""
        from meshard.plan.show.page import Markup, whole_page

        return whole_page(self._value._title(), Markup(self.fragment()))

    def svg(self, theme: str | None) -> str:
        """Return the drawing, with its style sheet and a title."""
        from meshard.plan.show.svg import standalone

        value = cast("_ShownDrawn", self._value)  # it has the verb, so it has the drawing
        return standalone(value._svg(), value._title(), theme)

    def write(self, path: Path, text: str, what: str) -> None:
        """Write a file."""
        from meshard.plan.file.files import write_text

        write_text(path, text, what)


def _pictured(value: object) -> _Sheet:
    """Return the picture of a value; those of the floor below are drawn here."""
    if isinstance(value, Pictured):
        return _Sheet(value)
    from meshard.plan.show.mesh_svg import shown_mesh

    return _Sheet(shown_mesh(value))


install_pictures(_pictured)
