"""What a package index shows: the README, whose links lead to the site and to the repository.

In: README.md, whose links are relative so that they work in any checkout. Out: the same text with
absolute links, in the metadata of the wheel. `pyproject.toml` names this file to hatchling.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent


def absolute(readme: str, docs: str, repository: str) -> str:
    """Return a README with absolute links.

    Args:
        readme: the text.
        docs: the address of the site.
        repository: the address of the repository.
    """
    raw = repository.replace("//github.com/", "//raw.githubusercontent.com/")
    rules = {
        r'\b(src|srcset)="(?!\w+:)([^"]+)"': rf'\1="{raw}/main/\2"',
        r"!\[([^\]]*)\]\((?!\w+:)([^)]+)\)": rf"![\1]({raw}/main/\2)",
        r"\]\(docs/([\w/]+)\.(?:md|py)(#[\w-]+)?\)": rf"]({docs}/\1.html\2)",
        r"\]\((?!\w+:|#)([^)]+)\)": rf"]({repository}/blob/main/\1)",
        r'\bhref="(?!\w+:|#)([^"]+)"': rf'href="{repository}/blob/main/\1"',
    }
    for pattern, whole in rules.items():
        readme = re.sub(pattern, whole, readme)
    return readme


class Readme(MetadataHookInterface):
    """Gives hatchling the README."""

    def update(self, metadata: dict) -> None:
        """Put the README into the metadata."""
        text = (HERE / "src" / "meshard" / "_version.py").read_text(encoding="utf-8")
        known = dict(re.findall(r'^(DOCS|REPOSITORY) = "(.*)"', text, re.MULTILINE))
        readme = (HERE / "README.md").read_text(encoding="utf-8")
        readme = absolute(readme, known["DOCS"], known["REPOSITORY"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
