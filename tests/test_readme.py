"""The README's code runs as it is written there, and prints what it says."""

import re

from tests.test_docs import ROOT, run

README = ROOT / "README.md"


def test_the_code_runs_and_prints_what_it_says() -> None:
    done = run(README)
    assert done.returncode == 0, done.stderr


def test_the_first_program_draws_and_counts() -> None:
    _, promised, *_ = re.findall(r"```(?:python|text)\n(.*?)```", README.read_text(), re.DOTALL)
    assert "CPU 7" in promised
    assert re.search(r"sum +all-reduce +x +float64\[4\]", promised)


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^\$ make (\w+)", README.read_text(), re.MULTILINE)
    makefile = README.with_name("Makefile").read_text()
    assert commands == ["demo", "test"]
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_links_lead_to_files_and_sections() -> None:
    targets = re.findall(r"\]\(([^):]+)\)", README.read_text())
    assert len(targets) > 20
    for target in targets:
        path, _, section = target.partition("#")
        found = README.parent / path
        assert found.exists(), target
        if section:
            heads = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert section in slugs, target


def test_pictures_are_there_for_light_and_dark_pages() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README.read_text())
    assert len(pictures) == 4
    for path in pictures:
        assert (README.parent / path).read_text().startswith("<svg"), path
