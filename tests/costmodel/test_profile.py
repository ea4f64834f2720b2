"""Profiles: what is shipped, what is refused, and that a profile says how good it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodel.profile import ProfileError, load_profile, parse_profile, profile_names
from costmodel.shape import StepShape
from costmodel.specs import model_spec
from costmodel.token_weights import TokenWeightsModel

SHIPPED = "h100-llama-3.1-8b-bf16"


NEW_IN_2 = ("cuda_graphs", "rates", "warnings", "model_shape", "noise_floor_ratio")


def raw() -> dict[str, Any]:
    return load_profile(SHIPPED).model_dump(mode="json")


def test_a_profile_of_schema_1_is_still_read() -> None:
    """It had no kinds of evidence, shapes, warnings or rates, and always a pool."""
    older = {name: value for name, value in raw().items() if name not in NEW_IN_2} | {"schema_version": 1}
    del older["provenance"]["evidence"]
    for file in older["provenance"]["files"]:
        del file["num_steps"]
    profile = parse_profile(json.dumps(older), "old.json")
    assert profile == load_profile(SHIPPED).model_copy(update={"schema_version": 1})


def test_shapes_come_from_the_profile_or_from_the_model_name() -> None:
    profile = load_profile(SHIPPED)
    assert profile.shapes() == model_spec("llama-3.1-8b")
    other = profile.shapes().model_copy(update={"name": "mine", "layers": 3})
    assert profile.model_copy(update={"model": "mine", "model_shape": other}).shapes().layers == 3
    with pytest.raises(ProfileError, match=r"unknown model 'mine': known are .* has no model_shape"):
        profile.model_copy(update={"model": "mine"}).shapes()


def test_without_a_pool_nothing_is_known_of_memory() -> None:
    assert load_profile(SHIPPED).model_copy(update={"pool": None}).kv_tokens is None


def test_the_shipped_profile_is_known_and_survives_a_round_trip() -> None:
    assert SHIPPED in profile_names()
    profile = load_profile(SHIPPED)
    assert parse_profile(profile.to_json(), "again") == profile
    assert profile.name == SHIPPED


def test_a_profile_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(load_profile(SHIPPED).to_json(), encoding="utf-8")
    assert load_profile(str(file)) == load_profile(SHIPPED)


def test_every_shipped_profile_is_small_readable_and_names_no_machine() -> None:
    for name in profile_names():
        text = load_profile(name).to_json()
        assert len(text) < 50_000
        assert "/home/" not in text
        assert not re.search(r'["\s]/\w+/', text)  # no absolute path


def test_the_fit_is_within_a_few_percent_everywhere() -> None:
    """Device time against composed steps, in the fit and for held-out regions."""
    profile = load_profile(SHIPPED)
    assert all(row.mape_ratio < 0.03 and row.worst_ratio < 0.08 for row in profile.fit_errors)
    assert all(row.mape_ratio < 0.05 and row.worst_ratio < 0.12 for row in profile.held_out_errors)
    assert len(profile.fit_errors) == len(profile.held_out_errors) == 17
    assert profile.worst_steps


@pytest.mark.parametrize(
    ("requests", "context", "low_ms", "high_ms"),
    [(64, 2048, 12.3, 12.7), (128, 2048, 17.6, 18.0), (256, 1024, 18.6, 19.6)],
)
def test_known_decode_steps(requests: int, context: int, low_ms: float, high_ms: float) -> None:
    """Device time as another study composed it from the same tables: within 3 % of its range."""
    terms = [term for term in load_profile(SHIPPED).terms() if term.part != "host"]
    found_ms = TokenWeightsModel(terms).seconds(StepShape((), requests, requests * context)) * 1e3
    assert low_ms * 0.97 <= found_ms <= high_ms * 1.03


def test_host_overhead_is_assumed_and_a_part_of_its_own() -> None:
    profile = load_profile(SHIPPED)
    parts = TokenWeightsModel(profile.terms()).parts(StepShape((), 100, 1000))
    assert parts["host"] == pytest.approx(0.9e-3 + 100 * 25e-6)
    assert {weight.origin for weight in profile.weights if weight.part == "host"} == {"assumed"}
    assert {weight.origin for weight in profile.weights if weight.quantity.startswith("verify")} == {"derived"}


def test_the_pool_adds_up_line_by_line() -> None:
    """80 GiB at 0.92 less weights and reserves: about 27,000 blocks of 16 tokens at 131,072 B."""
    pool = load_profile(SHIPPED).pool
    assert pool.bytes_per_token == 131_072
    assert pool.num_blocks == sum(item.num_bytes for item in pool.arithmetic) // (16 * 131_072)
    assert pool.num_blocks == pytest.approx(27_000, rel=0.01)


def test_unknown_profiles_list_what_exists() -> None:
    with pytest.raises(
        ProfileError, match=r"unknown profile 'h100': known are .*h100-llama-3.1-8b-bf16.*path must end"
    ):
        load_profile("h100")
    with pytest.raises(ProfileError, match=r"did you mean 'h100-llama-3.1-8b-bf16'\?"):
        load_profile("H100-llama3.1-8b-bf16")


def test_a_missing_file() -> None:
    with pytest.raises(ProfileError, match=r"cannot read profile 'nowhere/x.json': No such file"):
        load_profile("nowhere/x.json")


def test_a_newer_schema_says_so_and_nothing_else() -> None:
    newer = raw() | {"schema_version": 3, "something": "new"}
    with pytest.raises(ProfileError, match=r"p.json: schema_version 3 is newer than this program knows \(2\)"):
        parse_profile(json.dumps(newer), "p.json")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema_version": 0}, "schema_version: Input should be 1"),
        ({"wieghts": []}, "wieghts: Extra inputs are not permitted"),
        ({"weights": []}, r"weights of 'steps' must add up to >= 1e-09 s, got 0"),
        ({"name": None}, "name: Input should be a valid string"),
    ],
)
def test_what_is_not_a_profile(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProfileError, match=f"p.json: not a profile: .*{complaint}"):
        parse_profile(json.dumps(raw() | change), "p.json")


@pytest.mark.parametrize("text", ["{", "[]", "3", '"x"', "null"])
def test_what_is_not_even_an_object(text: str) -> None:
    with pytest.raises(ProfileError, match=r"p\.json: not"):
        parse_profile(text, "p.json")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("quantity", "rows", "unknown quantity 'rows'"),
        ("s_per_unit", -1, "greater than or equal to 0"),
        ("s_per_unit", float("nan"), "finite number"),
        ("past_each", 3, "past_each is for decode_kv_tokens only"),
    ],
)
def test_bad_weights(field: str, value: object, complaint: str) -> None:
    profile = raw()
    profile["weights"][1][field] = value
    with pytest.raises(ProfileError, match=complaint):
        parse_profile(json.dumps(profile), "p.json")


def test_a_pool_that_does_not_add_up() -> None:
    profile = raw()
    profile["pool"]["num_blocks"] += 1
    with pytest.raises(ProfileError, match="num_blocks is 26839, but the arithmetic leaves room for 26838"):
        parse_profile(json.dumps(profile), "p.json")
