"""Commands on systems that are not Linux, which `tests/as_windows.py` pretends to be one of."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import TINY

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has open is read from Linux")
def test_a_person_on_windows_trains_goes_on_runs_and_cuts_a_corpus(words: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"Line {number} of a text.\n\n" for number in range(200)), encoding="utf-8")
    columns = ["--data", str(words), "--source", "word", "--target", "phonemes", "--hold-out", "0.3", "--device", "cpu"]
    pairs = ["train", "text-to-text", *columns, *TINY, "--out", "two words", "--evaluate-every", "1"]
    small = ["--size", "width=8,hidden=16,heads=2,layers=1", "--length", "8", "--batch-rows", "2", "--device", "cpu"]
    lines = [
        [*pairs, "--steps", "4"],
        [*pairs, "--steps", "6", "--resume"],
        [*pairs, "--steps", "2", "--overwrite"],
        ["run", "two words", "cat→", "--json"],
        [
            "tokenize",
            "--data",
            str(corpus),
            "--blank-lines",
            "--tokenizer",
            "characters",
            "--out",
            "cut",
            "--workers",
            "1",
        ],
        ["train", "lm", "--stream", "--data", "cut", *small, "--steps", "2", "--out", "lm"],
        ["export", "lm", "published"],
        ["export", "lm", "published", "--overwrite"],
        ["run", "published", "Line", "--max-tokens", "2", "--device", "cpu"],
    ]
    (tmp_path / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.as_windows", "lines.json"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"},
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "QKV_CACHE": str(tmp_path / "cache"),
        },
    )
    told, errors = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    assert done.returncode == 0, errors
    assert "Traceback" not in errors
    assert 'qkv run "two words" ' in told, "in double quotes, which cmd.exe knows"
    assert '{"input": "cat→", ' in told
    assert re.search(r"\d+ documents of [\d,]+ tokens in 1 shard", told)
    for file in [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.jsonl"), *tmp_path.rglob("*.toml")]:
        assert b"\r" not in file.read_bytes(), file
