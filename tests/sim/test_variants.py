"""From a plan to runs: what is laid on top of what, what variants are called, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.scenario import ScenarioError
from sim.variants import make_plan, merged, points, read_plan, variants_of

BASE: dict[str, Any] = {"workload": {"kind": "bundled"}, "engine": {"preset": "vllm-v1", "max_num_seqs": 64}}


def plan(**changes: Any) -> Any:
    return make_plan({"scenario": BASE} | changes)


def test_flags_go_on_top_unless_another_preset_is_named() -> None:
    assert merged(BASE, {"engine": {"block_size": 32}})["engine"] == BASE["engine"] | {"block_size": 32}
    assert merged(BASE, {"engine": "reference"})["engine"] == {"preset": "reference"}
    assert merged(BASE, {"engine": {"preset": "vllm-v1", "block_size": 32}})["engine"]["max_num_seqs"] == 64
    assert merged(BASE, {"workload": {"kind": "trace", "path": "x"}})["workload"] == {"kind": "trace", "path": "x"}


def test_every_combination_is_a_variant_of_engines_that_have_the_flag() -> None:
    given = {"v1": {}, "static-batch": {"engine": "static-batch"}}
    found = variants_of(plan(variants=given, vary={"max_num_seqs": [1, 2], "order": ["fcfs", "priority"]}))
    assert list(found) == [
        "v1 max_num_seqs=1 order=fcfs",
        "v1 max_num_seqs=1 order=priority",
        "v1 max_num_seqs=2 order=fcfs",
        "v1 max_num_seqs=2 order=priority",
        "static-batch order=fcfs",
        "static-batch order=priority",
    ]
    alone = variants_of(plan(variants=given, vary={"max_num_seqs": [1, 2]}))
    assert list(alone) == ["v1 max_num_seqs=1", "v1 max_num_seqs=2", "static-batch"]


def test_a_table_may_be_named_where_a_name_means_two_things() -> None:
    reference = make_plan({"scenario": BASE | {"engine": "reference"}, "vary": {"engine.admission": ["conservative"]}})
    assert variants_of(reference) == {"admission=conservative": {"engine": {"admission": "conservative"}}}
    policy = make_plan({"scenario": BASE | {"engine": "reference"}, "vary": {"admission": ["conservative"]}})
    assert variants_of(policy) == {"admission=conservative": {"policies": {"admission": "conservative"}}}


def test_runs_are_places_times_variants_times_seeds() -> None:
    workload = {
        "kind": "synthetic",
        "num_requests": 5,
        "arrivals": {"kind": "poisson", "rate_per_s": 1},
        "prompt_tokens": {"kind": "fixed", "tokens": 5},
        "output_tokens": {"kind": "fixed", "tokens": 5},
    }
    found = points(
        plan(workloads=[workload, workload], rate_scales=[1, 2], vary={"max_num_seqs": [1, 2]}, seeds=[3, 4])
    )
    assert len(found) == 16
    assert {point.key.trace for point in found} == {"synthetic", "synthetic #2"}
    assert {point.scenario.seed for point in found} == {3, 4}
    assert {point.scenario.rate_scale for point in found} == {1, 2}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vary": {"max_num_seq": [1]}}, "did you mean 'max_num_seqs'"),
        ({"vary": {"max_num_seqs": []}}, "vary.max_num_seqs"),
        ({"seeds": [0, 1]}, "nothing is drawn from a seed with the workload"),
        ({"seeds": [1, 1]}, "must all be different"),
        ({"seeds": [0, 1], "blocks": 5}, "blocks must be left out"),
        ({"blocks": 1}, "blocks must be >= 2"),
        ({"rate_scales": [0]}, "rate_scales.0 must be > 0"),
        ({"vary": {"max_num_seqs": list(range(1, 30))}}, "at most 26 variants"),
        ({"variants": {"a": {"engine": {"max_num_seqs": 0}}}}, "variant 'a': engine.max_num_seqs must be >= 1"),
        ({"varry": {}}, "did you mean 'vary'"),
    ],
)
def test_what_makes_no_sense_is_said(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        points(plan(**changes))


def test_a_file_counts_paths_from_where_it_lies_and_runs_no_code_unasked(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[scenario.workload]\nkind = "trace"\npath = "t.csv"\n[vary]\nmax_num_seqs = [1, 2]\n', encoding="utf-8"
    )
    found = points(read_plan(path), file=path)
    assert found[0].scenario.workload.path == str(tmp_path / "t.csv")  # type: ignore[union-attr]
    assert found[0].key.trace == "t.csv"
    code = tmp_path / "plan.json"
    code.write_text(json.dumps({"scenario": BASE, "vary": {"order": ["mine.py:Mine", "fcfs"]}}), encoding="utf-8")
    with pytest.raises(ScenarioError, match="may run only with --allow-plugins"):
        points(read_plan(code), file=code, allow_plugins=False)
    allowed = points(read_plan(code), file=code, allow_plugins=True)
    assert allowed[0].scenario.policies.order is not None
    assert allowed[0].scenario.policies.order.name == str(tmp_path / "mine.py:Mine")
    assert allowed[0].key.variant == "order=mine.py:Mine"


def test_a_path_is_not_in_a_name() -> None:
    assert list(variants_of(plan(vary={"order": ["/home/me/mine.py:Mine"]}))) == ["order=mine.py:Mine"]


@pytest.mark.parametrize("text", ["[1]", "{", "x = "])
def test_a_file_that_is_no_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"plan\.json"):
        read_plan(path)
