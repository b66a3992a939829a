"""The benchmarks that set us beside others: they load, name what they do, and count honestly. Nothing is timed here."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from qkv.models.head_choice import HeadChoice
from qkv.models.vit import SIZES

BENCH = Path(__file__).resolve().parent.parent / "bench"
AGAINST_PEERS = [
    "encoding_gpu",
    "gpt2_decoding_gpu",
    "gpt2_training_gpu",
    "images_gpu",
    "sound_gpu",
    "t5_decoding_gpu",
]
ON_CPU = [
    "encoder_steps_cpu",
    "encoders_cpu",
    "first_pictures",
    "first_text",
    "gpt2_decoding",
    "starting",
    "text_to_text_cpu",
]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder, as scripts there do, and forgets all of them afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))
    known = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCH:
            del sys.modules[name]


@pytest.mark.parametrize("file", sorted(BENCH.glob("*.py")), ids=lambda file: file.stem)
def test_every_script_is_python_and_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", AGAINST_PEERS)
def test_a_script_against_peers_loads_and_says_how_long_it_takes(name: str, bench: Any) -> None:
    script: ModuleType = bench(name)
    assert script.WORKS
    assert f"python bench/{name}.py --small" in (script.__doc__ or "")
    assert "# about " in (script.__doc__ or "")  # seconds


@pytest.mark.parametrize("name", ON_CPU)
def test_a_script_for_cpus_loads(name: str, bench: Any) -> None:
    assert callable(bench(name).main)


def test_curves_become_pictures(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, scaling = bench("write_page"), bench("scaling_gpu")
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    rows, before = [], None
    for place, seconds in ((1, 1.0), (2, 1.0), (4, 4.0)):  # twice the work in the same time, then in four times it
        row, before = scaling.row_of("by rows", place, scaling.Point(place, seconds, place / 10), before)
        rows.append(row)
    assert [row["of the limit"] for row in rows] == ["10%", "20%", "10%"]
    assert [row["remark"] for row in rows] == ["", "", "a cliff"]
    rows.append({"curve": "by rows", "x": 8, "remark": "out of memory"})
    assert page.pictures(rows, {"by rows": "rows"}) == "![by rows](performance/by-rows.png)"
    assert (tmp_path / "performance" / "by-rows.png").stat().st_size > 1000


def test_results_have_words_on_the_page(bench: Any) -> None:
    titles = bench("write_page").TITLES
    assert set(titles) >= {*AGAINST_PEERS, *ON_CPU}
    assert {name for name in titles if not (BENCH / f"{name}.py").exists()} == set()


def test_goals_are_held_beside_what_was_measured(bench: Any) -> None:
    rows = [
        {"work": "GPT-2 124M, training step, 32 rows", "qkv": 610_000, "qkv, compiled": "failed: x", "HF": 700_000},
        {"work": "GPT-2 124M, training step in 8 bits, 32 rows", "qkv": 650_000},
    ]
    starting = [
        {"case": "BERT fills a gap", "times quicker": 2.8, "qkv, s": 1.25, "torch alone, s": 1.0},
        {"case": "torch alone"},
    ]
    goals = bench("goals")
    found = goals.beside_goals({"gpt2_training_gpu": rows, "starting": starting})
    assert [(row["goal"], row["measured"], row["reached"]) for row in found if row["measured"] != "not measured"] == [
        ("600,000", "610,000", "yes"),
        ("700,000", "650,000", "no"),
        ("3 times quicker", "2.8", "no"),
    ]
    missing = [row for row in found if row["measured"] == "not measured"]
    assert len(missing) == len(goals.GOALS) - 3  # what has no row is told of too
    assert {row["reached"] for row in missing} == {"no"}


def test_a_missed_goal_is_told_with_the_limit_and_what_our_time_goes_to(bench: Any) -> None:
    rows = [
        {"work": "BERT-base, 256 rows", "qkv": 24_000, "of the limit": "75%", "where our time goes": "products 91%"},
        {"work": "BERT-base, 4,096 sentences", "times the best peer": 3.0, "where our time goes": "none 90%"},
    ]
    starting = [
        {"case": "import qkv; import x", "times quicker": 30.0, "qkv, s": 0.02, "torch alone, s": 1.0},
        {"case": "BERT fills a gap", "times quicker": 2.8, "qkv, s": 1.25, "torch alone, s": 1.0},
    ]
    decoding = [
        {"by": "qkv, float32", "times HF": 1.2, "of what memory allows": "60%", "time in products and steps": "85%"}
    ]
    found = bench("goals").beside_goals({"encoding_gpu": rows, "starting": starting, "gpt2_decoding": decoding})
    told = {row["work"]: (row["at the limit"], row["where our time goes"]) for row in found}
    assert told["BERT-base, 256 rows"] == ("32,000", "products 91%")
    assert told["BERT-base, 4,096 sentences"] == ("", "")  # it was reached, and has no limit
    assert told["import qkv; import x"] == ("", "")
    assert told["BERT fills a gap"] == ("3.5", "importing torch 80%")
    assert told["qkv, float32"] == ("2", "products and steps 85%")
    reached = {row["work"]: row["reached"] for row in found}
    assert reached["BERT-base, 256 rows"] == "no"
    rows[0]["of the limit"] = "95%"
    (row,) = [
        row for row in bench("goals").beside_goals({"encoding_gpu": rows}) if row["work"] == "BERT-base, 256 rows"
    ]
    assert row["reached"] == "no, above the limit"


def test_what_a_call_is_spent_on(bench: Any) -> None:
    programs = [("nvjet_sm90_tst_192x192", 5.0), ("norm_map", 1.0), ("triton_per_fused_native_layer_norm", 1.0),
                ("void pytorch_flash::flash_fwd_kernel", 2.0), ("something", 0.001)]  # fmt: skip
    told = bench("gpu").shares_of_kinds(programs, 10.0)
    assert told == "matrix products 60%, attention 20%, norms 10%, none 10%"


@pytest.mark.parametrize("answers", [False, True])
def test_operations_are_those_of_the_formula(bench: Any, answers: bool) -> None:
    """Of a ViT by hand; where answers count, the last block asks and computes for one slot alone."""
    width, hidden, layers, slots, classes = 48, 96, 3, 5, 10
    sizes = replace(SIZES["base-16"], image=32, width=width, hidden=hidden, heads=3, layers=layers)
    head = HeadChoice("classification", labels=tuple(map(str, range(classes))))
    found = bench("same_weights").operations("vit", sizes, head, torch.zeros(2, 3, 32, 32), answers=answers)

    def block(asking: int) -> int:
        maps = 2 * slots * 2 * width**2 + 2 * asking * (2 * width**2 + 2 * width * hidden)
        return maps + 4 * asking * slots * width

    patches, head_of_all = 2 * (slots - 1) * 3 * 16**2 * width, 2 * width * classes
    last = block(1 if answers else slots)
    assert found == 2 * (patches + (layers - 1) * block(slots) + last + head_of_all)


def test_operations_of_an_encoders_steps_are_those_of_the_whole(bench: Any) -> None:
    script, count = bench("encoder_steps_cpu"), bench("same_weights").operations
    rows = script.bert(small=True)
    sizes = rows.model.sizes
    pooled = 2 * len(rows.given) * sizes.width**2
    found = sum(part.needed for part in script.parts_of(rows).values())
    assert found + pooled == count("bert", sizes, HeadChoice("pooled"), rows.given)
    pictures = script.vit(small=True)
    sizes, head = pictures.model.sizes, HeadChoice("classification", labels=tuple(map(str, range(1000))))
    beside = 2 * len(pictures.given) * sizes.width * ((pictures.slots - 1) * 3 * sizes.patch**2 + 1000)
    found = sum(part.needed for part in script.parts_of(pictures).values())
    assert found + beside == count("vit", sizes, head, pictures.given, answers=True)


def test_programs_that_begin_early_count_from_the_end_of_those_before(bench: Any) -> None:
    ran = [("late", 7.0, 8.0), ("first", 0.0, 4.0), ("waits", 1.0, 6.0), ("within", 2.0, 3.0)]
    told = bench("gpu").one_after_the_other(ran)
    assert told == [("first", 4.0), ("waits", 2.0), ("within", 0.0), ("late", 1.0)]


def test_works_that_are_profiled_are_those_beside_others() -> None:
    every = [
        json.loads((BENCH / "results" / f"{name}.json").read_text()) for name in ("encoder_steps_cpu", "encoders_cpu")
    ]
    profiled, beside = ({row["work"] for row in each["rows"]} for each in every)
    assert profiled
    assert profiled <= beside


def test_a_missed_goal_tells_what_its_own_profile_says(bench: Any) -> None:
    row = {"work": "ViT-B/16, 8", "times HF": 1.2, "of the limit": "90%", "time in products and steps": "98%"}
    profile = {"work": "ViT-B/16, 8", "where our time goes": "feed-forwards 60%"}
    for given, told in (([], "products and steps 98%"), ([profile], "feed-forwards 60%")):
        lines = bench("goals").beside_goals({"encoders_cpu": [row], "encoder_steps_cpu": given})
        assert [line["where our time goes"] for line in lines if line["work"] == row["work"]] == [told]


def rows_of(bench: Any, **changes: Any) -> list[dict[str, Any]]:
    """The row of a work of no time, done by us and by three peers: one quick, one missing, one broken; after each."""
    peers = bench("peers")

    def broken(stack: ExitStack) -> Any:
        raise ValueError("out of order\nand more")

    work = peers.Work(
        **{
            "title": "nothing",
            "unit": "calls/s",
            "amount": 1.0,
            "ours": {"qkv": lambda stack: lambda: None},
            "peers": {
                "quick": lambda stack: lambda: None,
                "gone": peers.without("gone is not installed"),
                "bad": broken,
            },
            "agreement": lambda: "equal",
            "given": {"gone": 1234.0},
            **changes,
        }
    )
    place = peers.Bench(True, torch.device("cpu"), Path())
    return list(peers.compete(work, place, peers.time.monotonic() + 60))


def test_peers_that_cannot_run_are_named_and_not_counted(bench: Any) -> None:
    row = rows_of(bench)[-1]
    assert row["gone"] == "not here: gone is not installed; given: 1,234.0"
    assert row["bad"] == "failed: ValueError out of order"
    assert row["qkv"] > 0
    assert row["quick"] > 0
    assert row["times the best peer"] > 0
    assert row["agreement"] == "equal"


def test_without_a_peer_that_ran_there_is_no_ratio(bench: Any) -> None:
    assert "times the best peer" not in rows_of(bench, peers={"gone": bench("peers").without("away")})[-1]


def test_whoever_is_stopped_has_what_was_measured_before(bench: Any) -> None:
    ours, quick, *_ = rows_of(bench)
    assert ours["qkv"] > 0
    assert ours["quick"] == ours["bad"] == "not measured"
    assert "times the best peer" not in ours
    assert quick["times the best peer"] > 0


def test_what_finds_no_time_is_left_out(bench: Any) -> None:
    peers = bench("peers")
    with pytest.raises(TimeoutError), peers.out_of_patience(0.0):
        pass
    with pytest.raises(TimeoutError), peers.out_of_patience(0.01):
        peers.time.sleep(60)


def test_answers_that_differ_stop_a_comparison(bench: Any) -> None:
    peers = bench("peers")
    answer = torch.arange(6.0)
    assert peers.agree({"qkv": answer, "other": answer + 1e-4}).startswith("2.0e-05, at most 1e-03")
    for other in (answer + 0.1, answer[:5], answer * torch.nan):
        with pytest.raises(peers.Disagreement):
            peers.agree({"qkv": answer, "other": other})
    assert peers.same_tokens({"qkv": [[1, 2]], "other": [[1, 2]]}).startswith("all 2 tokens")
    with pytest.raises(peers.Disagreement):
        peers.same_tokens({"qkv": [[1, 2]], "other": [[1, 3]]})


def test_a_peer_in_a_process_of_its_own(bench: Any) -> None:
    apart, missing = bench("apart"), bench("peers").Missing

    def gone() -> Any:
        raise missing("gone is not installed")

    counted: list[int] = []
    peer = apart.Apart(lambda: lambda: counted.append(1) or (len(counted), torch.get_num_threads()), threads=2)
    assert [peer(), peer()] == [(1, 2), (2, 2)]
    assert not counted
    assert peer.watched(repr).startswith("<function")
    peer.end()
    with pytest.raises(missing, match="not installed"):
        apart.Apart(gone, threads=1)
    with pytest.raises(RuntimeError, match="ended with code 7"):
        apart.Apart(lambda: os._exit(7), threads=1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        apart.Apart(lambda: lambda: 1 / 0, threads=1)()


def test_the_limit_is_the_slower_of_moving_and_computing(bench: Any) -> None:
    most = bench("gpu").Limits(bytes=4e12, flops=8e14)
    assert most.seconds(bytes=4e12, flops=8e14) == 1
    assert most.seconds(bytes=8e12, flops=8e14) == 2
    assert most.seconds(flops=2.4e15) == 3


def test_rows_of_other_works_stay_if_the_machine_is_the_same(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = bench("peers")
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "machine", lambda: {"gpu": "this one"})
    new = [{"work": "b", "qkv": 2}, {"work": "c", "qkv": 3}]
    assert peers.merged("some", new) == new
    old = [{"work": "a", "qkv": 1}, {"work": "b", "qkv": 1}, {"work": "d", "failed": "of something"}]
    for gpu, kept in (("this one", [old[0]]), ("another", [])):
        (tmp_path / "some.json").write_text(json.dumps({"machine": {"gpu": gpu}, "rows": old}), encoding="utf-8")
        assert peers.merged("some", new) == [*kept, *new]


def test_the_model_written_by_hand_is_gpt2(bench: Any) -> None:
    """It is what our speed is measured by, so it must compute the same, whole and token by token."""
    pairs, plain = bench("same_weights"), bench("plain_gpt2")
    from qkv.models.gpt2 import GPT2Sizes
    from qkv.models.head_choice import HeadChoice

    sizes = GPT2Sizes(vocabulary=70, positions=16, width=16, hidden=64, heads=2, layers=2)
    place = bench("peers").Bench(True, torch.device("cpu"), Path())
    ours = pairs.ours_of("gpt2", sizes, HeadChoice("language"), place)
    model = plain.PlainGPT2(sizes).filled(pairs.names_of_others(ours))
    ids = torch.randint(0, 70, (1, 5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[..., :70], ours(ids), atol=1e-5, rtol=1e-5)
        written = plain.PlainDecoder(model, 5, 4, compiled=False).run(ids)
        for _ in range(4):
            ids = torch.cat((ids, ours(ids)[:, -1:].argmax(-1)), 1)
    assert written == ids[0, 5:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*AGAINST_PEERS, *ON_CPU, "scaling_gpu"])
def test_a_script_runs_in_small(name: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / f"{name}.py", "--small"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "failed" not in done.stdout


def test_a_cliff_is_explained_or_called_unexplained(bench: Any) -> None:
    page = bench("write_page")
    known = {"curve": "decoding, by rows", "x": 8, "remark": "a cliff"}
    new, none = {**known, "x": 64}, {**known, "x": 16, "remark": ""}
    told = page.cliffs([known, none, new]).strip().split("\n\n")
    assert [line.split(" of ")[0] for line in told] == ["The cliff at 8", "The cliff at 64"]
    assert "one program" in told[0]
    assert told[1].endswith("not explained yet.")
    assert page.cliffs([none]) == ""
