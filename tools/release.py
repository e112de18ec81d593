"""What must be so before a release, and what is left to do after its checks.

In: the repository. Out: sentences, one for each thing that is in the way; none ends with code 0.
With --ready it says how to publish, with --tagged it asks whether HEAD is what its version says.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"


def version(root: Path) -> str:
    """Return the version that the package tells."""
    text = (root / "src/meshard/_version.py").read_text(encoding="utf-8")
    found = re.search(rf'^__version__ = "({_VERSION})"$', text, re.MULTILINE)
    return "" if found is None else found[1]


def git(root: Path, *words: str) -> str:
    """Return what git prints; empty if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def in_the_way(root: Path) -> Iterator[str]:
    """Yield what must be mended before this tree can be released."""
    told = version(root)
    if not told:
        yield "src/meshard/_version.py holds no version such as 1.2.3 or 1.2.3rc1"
        return
    changed = git(root, "status", "--porcelain")
    if changed:
        yield f"the tree has changes that are not committed:\n{changed}"
    if git(root, "tag", "--list", f"v{told}"):
        at = git(root, "rev-list", "-n", "1", f"v{told}")
        if at != git(root, "rev-parse", "HEAD"):
            yield f"version {told} is released: v{told} is another commit; raise the version"
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## \[{re.escape(told)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        changes,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        yield (
            f'CHANGELOG.md has no section "## [{told}] - YYYY-MM-DD": rename Unreleased, '
            "and start an empty one above it"
        )
    elif not re.search(r"^- ", section[1], re.MULTILINE):
        yield f"CHANGELOG.md says nothing of {told}"
    cited = re.search(
        r"^version: (\S+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE
    )
    if cited is None or cited[1].strip("\"'") != told:
        yield f"CITATION.cff must say version: {told}"


def untagged(root: Path) -> Iterator[str]:
    """Yield why HEAD cannot be published."""
    tag = f"v{version(root)}"
    if tag not in git(root, "tag", "--points-at", "HEAD").split():
        yield f"HEAD is not {tag}: git tag -a {tag} -m {tag}"
    wheels = [path.name for path in (root / "dist").glob("*.whl")]
    if wheels != [f"meshard-{tag[1:]}-py3-none-any.whl"]:
        yield f"dist holds {', '.join(wheels) or 'no wheel'}; make release builds it"


def next_moves(told: str) -> str:
    """Return what a person does once all checks have passed."""
    return (
        f"meshard {told} is ready: dist holds what was tested. To publish it:\n"
        f"  git tag -a v{told} -m v{told} && git push origin v{told}\n"
        "CI builds the tag again and publishes it by trusted publishing; without CI: make publish"
    )


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ready", action="store_true", help="say how to publish")
    parser.add_argument("--tagged", action="store_true", help="check that HEAD may be published")
    asked = parser.parse_args()
    found = [*in_the_way(ROOT), *(untagged(ROOT) if asked.tagged else ())]
    if found:
        sys.exit("\n".join(found))
    if asked.ready:
        print(next_moves(version(ROOT)))


if __name__ == "__main__":
    main()
