"""Worked cases of what-if questions with their exact numbers: F7 (the others stand in test_worked_cases)."""

from __future__ import annotations

import pytest

from sim import make_scenario, replay

PREFILL_PER_S = 2400


def longest_gap_s(budget: int) -> float:
    """Of a stream beside which a long prompt is computed."""
    run = replay(
        make_scenario(
            {
                "workload": {
                    "kind": "inline",
                    "requests": [{"id": "prompt", "arrival_s": 0.033, "prompt_tokens": 16384, "output_tokens": 1}],
                },
                "initial": {
                    "running": [
                        {
                            "id": "stream",
                            "prompt_tokens": 1,
                            "computed_tokens": 1,
                            "output_tokens": 1,
                            "remaining_output_tokens": 200,
                        }
                    ]
                },
                "engine": {"preset": "reference", "num_blocks": 4000, "token_budget": budget},
                "cost": {
                    "kind": "linear",
                    "a_s": 0.033,
                    "b_s_per_token": 0.0,
                    "prefill_a_s": 1e-9,
                    "prefill_b_s_per_token": 1 / PREFILL_PER_S,
                },
            }
        )
    )
    return float(run.request_table.loc["stream", "max_itl_s"])


@pytest.mark.parametrize(
    ("budget", "gap_s", "tokens_per_s"), [(8192, 3.4133, 0.29), (512, 0.2133, 4.7), (600, 0.25, 4.0)]
)
def test_f7_a_prefill_in_the_step_is_what_freezes_streams(budget: int, gap_s: float, tokens_per_s: float) -> None:
    found = longest_gap_s(budget)
    assert found == pytest.approx(gap_s, abs=1e-4)
    assert 1 / found == pytest.approx(tokens_per_s, abs=0.02)


def test_f7_one_token_more_than_600_passes_250_ms() -> None:
    assert longest_gap_s(600) <= 0.25 + 1e-8 < longest_gap_s(601)
