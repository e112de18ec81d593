"""The `meshard` command as a whole: help, wrong usage, exit codes, completion, what it imports."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from meshard.cli import main
from meshard.cli.errors import EXIT_CODES, CommandError
from meshard.cli.main import COMMANDS, COMPLETE, group

ROOT = Path(__file__).parents[1]
SHELLS = ("bash", "zsh", "fish")


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the group, each command and each command of a command, with their words."""
    yield "", group
    context = click.Context(group, info_name="meshard")
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())


def run_python(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestHelp:
    def test_the_table_has_the_commands_that_exist(self) -> None:
        folder = ROOT / "src" / "meshard" / "cli" / "commands"
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert set(COMMANDS) == modules
        assert list(COMMANDS) == sorted(COMMANDS)
        for name, command in all_commands():
            assert command.name == (name.split()[-1] if name else "meshard")

    @pytest.mark.parametrize(("words", "command"), [*all_commands()])
    def test_it_fits_80_columns(
        self, words: str, command: click.Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main([*words.split(), "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: {' '.join(['meshard', *words.split()])} ")
        assert max(map(len, text.splitlines())) <= 80
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{words}: {option.opts} has no help"

    @pytest.mark.parametrize("words", [words for words, _ in all_commands()])
    def test_help_fits_a_narrow_terminal(
        self, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def shown(columns: int) -> str:
            monkeypatch.setenv("COLUMNS", str(columns))
            with pytest.raises(SystemExit):
                main([*words.split(), "--help"])
            return capsys.readouterr().out

        narrow, wide = shown(60), shown(100)
        assert max(map(len, narrow.splitlines())) <= 60
        # Examples are the same commands, whatever their lines.
        commands = [
            set(text.partition("Options:")[0].partition("For example:")[2].split()) - {"\\"}
            for text in (narrow, wide)
        ]
        assert commands[0] == commands[1]

    def test_exit_codes_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        listed = capsys.readouterr().out.partition("Exit codes:\n")[2]
        assert [int(line.split()[0]) for line in listed.splitlines()] == list(EXIT_CODES)

    @pytest.mark.parametrize("arguments", [["--help"], ["runn"], ["--version"]])
    def test_it_imports_no_command(self, arguments: list[str]) -> None:
        done = run_python(
            "import sys; from meshard.cli import main\n"
            "before = set(sys.modules)\n"
            f"try: main({arguments!r})\nexcept SystemExit: pass\n"
            "loaded = sorted(set(sys.modules) - before)\n"
            "slow = ('rich.', 'scipy.', 'zarr.', 'h5py.')\n"
            "bad = [n for n in sys.modules if n.startswith(slow)]\n"
            "bad += [n for n in loaded if n.startswith(('meshard', 'numpy'))]\n"
            "sys.exit(f'{bad}' if bad else 0)"
        )
        assert done.returncode == 0, done.stderr


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["dmeo"], "meshard: invalid choice: 'dmeo'; did you mean 'demo'?\n"),
            (["fly"], "meshard: invalid choice: 'fly' (choose from "),
            (["--fly"], "meshard: No such option"),
            (["demo", "--device", "3"], "meshard demo: No such option"),
            (["demo", "--device", "3"], "; did you mean '--devices'?\n"),
            (["plan", "--frm", "x"], "did you mean '--from' or '--from-mesh'?\n"),
            (["show", "8", "--mesh"], "meshard show: Option '--mesh' requires an argument"),
            (["reshard", "a", "b", "--to", "safetensor"], "did you mean 'safetensors'?\n"),
            (["completion"], "meshard completion: the following arguments are required: SHELL\n"),
            (["completion", "tcsh"], "meshard completion: argument SHELL: 'tcsh' is not one of"),
            (["demo", "more"], "meshard demo: Got unexpected extra argument"),
        ],
    )
    def test_what_is_wrong_comes_first(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert message in printed.err
        assert printed.err.startswith("meshard")
        last = printed.err.splitlines()[-1]
        assert last.startswith("`meshard")
        assert last.endswith("--help` explains it.")
        assert len(printed.err.splitlines()) <= 4


class TestEnds:
    @pytest.mark.parametrize(
        ("error", "code", "said"),
        [
            (CommandError("it is broken"), 1, "meshard completion: it is broken\n"),
            (KeyboardInterrupt(), 130, ""),
            (
                FileNotFoundError(2, "No such file", "x.py"),
                1,
                "meshard completion: [Errno 2] No such file: 'x.py'\n",
            ),
        ],
    )
    def test_an_error_is_an_exit_code_and_a_sentence(
        self,
        error: BaseException,
        code: int,
        said: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def fail(shell: str) -> None:
            raise error

        module = importlib.import_module("meshard.cli.commands.completion")
        monkeypatch.setattr(module, "get_completion_class", fail)
        assert main(["completion", "bash"]) == code
        assert capsys.readouterr().err == said

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
    def test_a_disk_that_is_full(self) -> None:
        with open("/dev/full", "w") as full:
            line = [sys.executable, "-m", "meshard", "completion", "bash"]
            done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr == "meshard completion: [Errno 28] No space left on device\n"

    def test_a_reader_that_has_seen_enough(self) -> None:
        line = f"{sys.executable} -m meshard completion zsh | true; exit ${{PIPESTATUS[0]}}"
        if shutil.which("bash") is None:
            pytest.skip("there is no bash")
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 1)  # it may have written before the reader ended
        assert done.stderr == ""


class TestCompletion:
    @pytest.mark.parametrize("shell", SHELLS)
    def test_a_script(self, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert COMPLETE in script
        assert f"{shell}_complete" in script
        if shutil.which(shell) is not None:
            done = subprocess.run([shell], input=script, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("meshard de", ["plain,demo"]),
            ("meshard demo --d", ["plain,--devices"]),
            ("meshard completion z", ["plain,zsh"]),
            ("meshard demo --weights x", ["file,x"]),
            ("meshard inspect run", ["file,run"]),
            ("meshard checkpoint c", ["plain,clean"]),
            ("meshard example ring", ["plain,ring_attention"]),
            ("meshard plan --topology two", ["plain,two\\ racks"]),
            ("meshard plan --topology mine.toml", ["file,mine.toml"]),
        ],
    )
    def test_words(
        self,
        line: str,
        expected: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert completed(line, monkeypatch, capsys) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "meshard"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshard "$@"\n')
    command.chmod(0o755)
    lines = [
        "source <(meshard completion bash)",
        "complete -p meshard > /dev/null || exit 9",
        'COMP_WORDS=(meshard do) COMP_CWORD=1; _meshard_completion meshard; echo "${COMPREPLY[@]}"',
        "COMPREPLY=() COMP_WORDS=(meshard show --u) COMP_CWORD=2; _meshard_completion meshard",
        'echo "${COMPREPLY[@]}"',
    ]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["doctor", "--uneven"]


def completed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return what bash is told when Tab is pressed at the end of a line."""
    monkeypatch.setenv(COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    return capsys.readouterr().out.splitlines()
