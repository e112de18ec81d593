"""What is released: the project's table, the page of a package index, and the checks before it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from meshard import __version__
from meshard._version import DOCS, REPOSITORY
from tools import least, release

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

RAW = f"https://raw.githubusercontent.com/meshard/meshard/v{__version__}"


def published(text: str) -> str:
    """Return a README as a package index gets it."""
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    return text.replace("$HFPR_VERSION", __version__)


def targets(text: str) -> set[str]:
    """Return where the links and pictures of a page lead."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\(([^)\s]*)[^)]*\)|(?:src|href|srcset)=[\"']([^\"']*)[\"']", prose)
    return {one or other for one, other in found}


def test_all_links_of_the_readme_work_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = published(text)
    wrong = {x for x in targets(found) if not re.match(r"https://[\w.-]+/\S*$|#", x)}
    assert wrong == set(), "pyproject.toml says how links of the README are made absolute"
    blocks = r"^```.*?^```"
    code = [re.findall(blocks, x, re.DOTALL | re.MULTILINE) for x in (text, found)]
    assert code[0] == code[1]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](docs/jit.md)", f"[a]({DOCS}/jit.html)"),
        ("[a](docs/migration/index.md#two-words)", f"[a]({DOCS}/migration/index.html#two-words)"),
        ("[a](LICENSE)", f"[a]({REPOSITORY}/blob/v{__version__}/LICENSE)"),
        ("[a](examples/heat.py)", f"[a]({REPOSITORY}/blob/v{__version__}/examples/heat.py)"),
        ("[a](https://x.org/docs/a.md)", "[a](https://x.org/docs/a.md)"),
        ("[a](#try-it)", "[a](#try-it)"),
        ('<a href="docs/jit.md">', f'<a href="{DOCS}/jit.html">'),
        ('<img src="docs/a.svg">', f'<img src="{RAW}/docs/a.svg">'),
        ('<source srcset="docs/a.svg">', f'<source srcset="{RAW}/docs/a.svg">'),
        ("![a](docs/a.svg)", f"![a]({RAW}/docs/a.svg)"),
        ("[![a](docs/a.svg)](docs/jit.md)", f"[![a]({RAW}/docs/a.svg)]({DOCS}/jit.html)"),
    ],
)
def test_a_link_of_a_package_index(link: str, expected: str) -> None:
    assert published(link) == expected


def test_projects_links_and_citation_lead_to_one_place() -> None:
    urls = PROJECT["project"]["urls"]
    assert urls["Documentation"].rstrip("/") == DOCS
    assert urls["Source"] == REPOSITORY
    assert all(url.startswith((DOCS, REPOSITORY)) for url in urls.values())
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"repository-code: {REPOSITORY}\n" in cited
    assert f"url: {DOCS}/\n" in cited


def test_each_supported_python_is_named_and_tested() -> None:
    project = PROJECT["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}"
    flow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    tested = [re.findall(r'"(3\.\d+)"', x) for x in re.findall(r"python: (\[.*\])", flow)]
    assert tested == [named, named]
    policy = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    assert f"Python {named[0]} to {named[-1]}" in policy
    numpy = next(x for x in project["dependencies"] if x.startswith("numpy"))
    assert f"NumPy {numpy.removeprefix('numpy>=')}" in policy


def test_the_least_versions_are_those_of_the_project(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["numpy>=2.0", "rich"]\n'
        '[project.optional-dependencies]\nmpi = ["mpi4py>=4.0"]\nfast = ["a-b>=1.2"]\n'
    )
    assert [*least.constraints(project)] == ["numpy==2.0", "a-b==1.2"]


def git(root: Path, *words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a repository that can be released as 1.2.3."""
    files = {
        "src/meshard/_version.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2030-01-31\n\n### Added\n\n- All.\n",
        "CITATION.cff": "version: 1.2.3\n",
    }
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def test_nothing_is_in_the_way_of_a_release(ready: Path) -> None:
    assert [*release.in_the_way(ready)] == []
    assert "git tag -a v1.2.3" in release.next_moves("1.2.3")
    git(ready, "tag", "v1.2.3")
    assert [*release.in_the_way(ready)] == []
    (ready / "dist").mkdir()
    (ready / "dist" / "meshard-1.2.3-py3-none-any.whl").touch()
    assert [*release.untagged(ready)] == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("other", "new", r"the tree has changes that are not committed:\n\?\? other"),
        ("src/meshard/_version.py", '__version__ = "next"', r"_version.py holds no version such"),
        ("src/meshard/_version.py", '__version__ = "2.0.0"\n', r"no section \"## \[2.0.0\] - YYYY"),
        ("CHANGELOG.md", "## [Unreleased]\n- All.\n", r"no section \"## \[1.2.3\] - YYYY-MM-DD\""),
        ("CHANGELOG.md", "## [1.2.3] - 2030-01-31\n", r"CHANGELOG.md says nothing of 1.2.3"),
        ("CITATION.cff", "version: 1.2.2\n", r"CITATION.cff must say version: 1.2.3"),
    ],
)
def test_what_is_in_the_way_of_a_release(ready: Path, file: str, text: str, expected: str) -> None:
    (ready / file).write_text(text)
    assert re.search(expected, "\n".join(release.in_the_way(ready)))


def test_a_version_is_released_once(ready: Path) -> None:
    git(ready, "tag", "v1.2.3")
    (ready / "more").touch()
    git(ready, "add", ".")
    git(ready, "commit", "-qm", "more")
    assert "version 1.2.3 is released: v1.2.3 is another commit" in "".join(
        release.in_the_way(ready)
    )
    assert [*release.untagged(ready)] == [
        "HEAD is not v1.2.3: git tag -a v1.2.3 -m v1.2.3",
        "dist holds no wheel; make release builds it",
    ]


def test_reports_ask_for_what_doctor_prints() -> None:
    forms = ROOT / ".github" / "ISSUE_TEMPLATE"
    for name in ("1-bug.yml", "2-slow.yml"):
        assert "label: What `meshard doctor` prints" in (forms / name).read_text(encoding="utf-8")


def test_workflows_run_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        asked = set(re.findall(r"run: make ([\w-]+)", file.read_text(encoding="utf-8")))
        assert asked, file
        assert asked <= known, file
