"""Values with a picture: the verbs that show one in a notebook and write it as a page or a drawing.

In: a value that says its title and the parts of its picture. Out: HTML, SVG and files, whole in
themselves. What makes them is imported when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from meshard.algebra.arguments import path_of

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup


class Pictured:
    """A value that is shown as a page: define `_title` and `_parts`."""

    __slots__ = ()

    def _title(self) -> str:
        """Return the headline, without markup."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Markup]:
        """Yield what stands below the headline."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return an HTML page of this, in one piece: nothing is loaded from elsewhere."""
        from meshard.plan.show.page import fragment, whole_page

        title = self._title()
        return whole_page(title, fragment(title, *self._parts()))

    def save_html(self, path: str | Path) -> Path:
        """Write the page of `to_html` to a file.

        Returns:
            The path written.

        Raises:
            ArgumentError: if ``path`` is not a path.
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        return _written(self, path, "save_html", self.to_html)

    def _repr_html_(self) -> str:
        """Return the element that a notebook shows."""
        from meshard.plan.show.page import fragment

        return fragment(self._title(), *self._parts())


class Drawn(Pictured):
    """A value whose picture is one drawing: define `_title` and `_svg`, and more in `_parts`."""

    __slots__ = ()

    def _svg(self) -> Markup:
        """Return the drawing, for a page that has the style sheet."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Markup]:
        """Yield the drawing."""
        from meshard.plan.show.page import wide

        yield wide(self._svg())

    def to_svg(self) -> str:
        """Return the drawing as one ``<svg>`` element, in one piece.

        It is light or dark as the page says that it is put into, and where none says, as the
        reader's system is.
        """
        from meshard.plan.show.svg import standalone

        return standalone(self._svg(), self._title())

    def save_svg(self, path: str | Path) -> Path:
        """Write the drawing of `to_svg` to a file.

        Returns:
            The path written.

        Raises:
            ArgumentError: if ``path`` is not a path.
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        return _written(self, path, "save_svg", self.to_svg)


def _written(value: Pictured, path: str | Path, verb: str, make: Callable[[], str]) -> Path:
    """Write what a method makes, once the path is known to be one."""
    from meshard.plan.file.files import write_text

    what = f"{type(value).__name__}.{verb}"
    target = path_of(path, what)
    write_text(target, make(), what)
    return target
