"""Screenshots of the site, to be looked at: light, dark, and as wide as a phone.

In: ``build/docs/html``. Out: ``build/pictures``. Run by `make pictures`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from machinery.site import photograph

ROOT = Path(__file__).resolve().parents[2]
SITE, TARGET = ROOT / "build" / "docs" / "html", ROOT / "build" / "pictures"
PAGES = {
    "home": "index.html",
    "guide": "resharding.html",
    "explain": "jit.html",
    "gallery": "gallery/index.html",
    "program": "gallery/tensor_parallel.html",
    "module": "api/numpy.html",
    "function": "api/generated/meshard.numpy.sort.html",
    "class": "api/generated/meshard.Array.html",
}
WINDOWS = {
    "light": ((1440, 2600), "--blink-settings=preferredColorScheme=1"),
    "dark": ((1440, 2600), "--blink-settings=preferredColorScheme=0"),
    "phone": ((390, 2600), "--blink-settings=preferredColorScheme=1"),
}


def main() -> str | int:
    """Take all screenshots; return what is missing for that."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        for window, (size, setting) in WINDOWS.items():
            picture = TARGET / f"{name}-{window}.png"
            if not photograph((SITE / page).as_uri(), picture, size, setting):
                return "Chromium takes the screenshots, and is not installed."
            print(picture.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
