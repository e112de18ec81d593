"""The README's example runs as it is written there, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    promised, *_ = re.findall(r"print\(.*\)  # (.*)", code)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, *drawing = done.stdout.splitlines()
    assert first == promised
    assert any("CPU 7" in line for line in drawing)
    assert any(re.search(r"ppermute +permute +x +float64\[1,16\]", line) for line in drawing)


def test_the_table_of_explain_is_what_it_prints(tmp_path: Path) -> None:
    text = README.read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (promised,) = re.findall(r"```text\n(head: .*?)```", text, re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text(code)
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert promised.strip() in done.stdout


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^\$ make (\w+)", README.read_text(), re.MULTILINE)
    makefile = README.with_name("Makefile").read_text()
    assert commands == ["demo", "test"]
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
