"""The panel's logic, without a browser; and that its widgets answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sim.panel import WhatIf, panel
from sim.scenario import ScenarioError

SCENARIO: dict[str, Any] = {
    "workload": {"kind": "bundled"},
    "limit": 200,
    "engine": {"preset": "vllm-v1"},
    "slo": {"ttft_s": 1.0, "tpot_s": 0.03},
}


def test_knobs_are_the_engines_flags() -> None:
    asked = WhatIf(SCENARIO)
    assert set(asked.knobs) == {"rate", "budget", "slots", "blocks", "chunk"}
    engine = asked.scenario(budget=1024, slots=8, blocks=500, chunk=256, rate=2.0).engine.model_dump()
    assert engine["max_num_batched_tokens"] == 1024
    assert engine["max_num_seqs"] == 8
    assert engine["num_gpu_blocks_override"] == 500
    assert engine["long_prefill_token_threshold"] == 256
    assert set(WhatIf(SCENARIO | {"engine": "static-batch"}).knobs) == {"rate", "slots", "blocks"}
    with pytest.raises(ScenarioError, match="no budget"):
        WhatIf(SCENARIO | {"engine": "static-batch"}).scenario(budget=1024)


def test_an_answer_is_a_run_and_is_remembered() -> None:
    asked = WhatIf(SCENARIO)
    one = asked.answer(slots=4)
    assert one.run is not None
    assert one.run.engines[0].max_running == 4
    assert asked.answer(slots=4) is one


def test_a_setting_that_makes_no_sense_is_said() -> None:
    asked = WhatIf(SCENARIO)
    answer = asked.answer(blocks=1)
    assert answer.run is None
    assert "num_gpu_blocks_override must be &gt;= 2" in asked.html(answer)


def test_the_pinned_run_stands_beside() -> None:
    asked = WhatIf(SCENARIO)
    assert "pinned" not in asked.html(asked.answer())
    asked.pinned = asked.answer().run
    assert "pinned" in asked.html(asked.answer(slots=4))
    assert asked.png(asked.answer(slots=4)).startswith(b"\x89PNG")


def test_ten_thousand_requests_are_answered_in_about_a_second() -> None:
    """CPU time, twice what it takes on the slowest machine it was measured on: a test must not fail of being busy."""
    workload = {
        "kind": "synthetic",
        "num_requests": 10_000,
        "arrivals": {"kind": "poisson", "rate_per_s": 12},
        "prompt_tokens": {"kind": "lognormal", "mean_tokens": 500, "sigma": 0.8},
        "output_tokens": {"kind": "lognormal", "mean_tokens": 150, "sigma": 0.6},
    }
    asked = WhatIf(SCENARIO | {"workload": workload, "limit": None})
    asked.answer()
    started_s = time.process_time()
    asked.html(asked.answer(slots=64))
    assert time.process_time() - started_s < 2


def test_the_widgets_answer() -> None:
    pytest.importorskip("ipywidgets")
    shown = panel(SCENARIO)
    (left, table), image, _ = shown.children[0].children, shown.children[1], shown.children[2]
    before = table.value
    slots = next(each for each in left.children if getattr(each, "description", "") == "slots")
    slots.value = 4
    assert table.value != before
    assert bytes(image.value).startswith(b"\x89PNG")
    pin, copy = left.children[-1].children
    pin.click()
    assert "pinned" in table.value
    copy.click()
    assert '"max_num_seqs": 4' in shown.children[2].value
