"""Generated workloads: arrivals (case E8), lengths, prefixes, and what a seed promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from workloads.arrivals import Constant, Gamma, Poisson, arrival_ns
from workloads.config import problems
from workloads.lengths import Empirical, Fixed, Lognormal, length_tokens
from workloads.rng import gammas, normals, picks, uniforms
from workloads.synthetic import SyntheticConfig, generate
from workloads.trace import UNKNOWN
from workloads.write import csv_lines

BASE = {
    "num_requests": 50,
    "arrivals": {"kind": "poisson", "rate_per_s": 10},
    "prompt_tokens": {"kind": "lognormal", "mean_tokens": 500, "sigma": 1.2, "max_tokens": 4000},
    "output_tokens": {"kind": "empirical", "values": [1, 10, 100], "weights": [1, 2, 3]},
}
PINNED = [0.6749873291354443, 0.03176246265755622, 0.9188071078938719]
RICH = {
    **BASE,
    "prefixes": {
        "num_prefixes": 5,
        "prefix_tokens": 128,
        "group_tokens": 32,
        "popularity": "zipf",
        "share_ratio": 0.5,
    },
    "priorities": {0: 1, 5: 3},
    "clients": {"a": 1, "b": 2},
    "queue_timeout_s": 1.5,
    "timeout_s": 60,
    "cancels": {"share_ratio": 0.3, "after_s": 2},
    "max_tokens": "factor:1.5",
}


def config(base=BASE, **changes):
    return SyntheticConfig.model_validate({**base, **changes})


class TestCaseE8:
    """Rate 10/s, 5 requests."""

    @pytest.mark.parametrize("burstiness", [0.05, 0.25, 1.0, 4.0, 1000.0])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_the_last_arrival_is_at_n_over_rate_exactly(self, burstiness, seed):
        times = arrival_ns(Gamma(rate_per_s=10, burstiness=burstiness), 5, seed)
        assert times[-1] == 500_000_000
        assert (np.diff(times) >= 0).all()
        assert times[0] >= 0

    def test_infinite_burstiness_is_constant_and_starts_one_gap_after_0(self):
        times = arrival_ns(Gamma(rate_per_s=10, burstiness=math.inf), 5, seed=0)
        assert times.tolist() == [100_000_000, 200_000_000, 300_000_000, 400_000_000, 500_000_000]
        assert np.array_equal(times, arrival_ns(Constant(rate_per_s=10), 5, seed=1))

    @pytest.mark.parametrize(
        "arrivals",
        [
            Gamma(rate_per_s=math.inf, burstiness=0.25),
            Poisson(rate_per_s=math.inf),
            Constant(rate_per_s=math.inf),
        ],
    )
    def test_infinite_rate_is_all_at_once(self, arrivals):
        assert arrival_ns(arrivals, 5, seed=0).tolist() == [0] * 5

    @pytest.mark.parametrize(("burstiness", "cv"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
    def test_gaps_have_the_mean_and_the_cv(self, burstiness, cv):
        num = 40_000
        gaps = np.diff(arrival_ns(Gamma(rate_per_s=10, burstiness=burstiness), num, seed=3), prepend=0) / 1e9
        assert gaps.mean() == pytest.approx(0.1)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)

    @pytest.mark.parametrize("burstiness", [0, -1, math.nan])
    def test_burstiness_must_be_positive(self, burstiness):
        with pytest.raises(ValidationError) as error:
            Gamma(rate_per_s=10, burstiness=burstiness)
        assert problems(error.value) == [f"burstiness must be > 0, got {burstiness}"]

    def test_poisson_is_gamma_1_stretched_as_well(self):
        poisson = arrival_ns(Poisson(rate_per_s=10), 7, seed=5)
        assert np.array_equal(poisson, arrival_ns(Gamma(rate_per_s=10, burstiness=1), 7, seed=5))
        assert poisson[-1] == 700_000_000


def test_poisson_gaps_are_exponential():
    gaps = np.diff(arrival_ns(Poisson(rate_per_s=1), 40_000, seed=1), prepend=0) / 1e9
    for at in (0.1, 0.5, 1.0, 3.0):
        assert (gaps > at).mean() == pytest.approx(math.exp(-at), abs=0.01)


def test_a_burst_so_strong_that_no_gap_is_left():
    assert arrival_ns(Gamma(rate_per_s=10, burstiness=1e-9), 3, seed=0)[-1] == 300_000_000


def test_a_gap_beyond_all_measure(monkeypatch):
    monkeypatch.setattr("workloads.arrivals.gammas", lambda *_: np.array([1.0, 1e290, 1e290]))
    assert arrival_ns(Gamma(rate_per_s=10, burstiness=1), 3, seed=0).tolist() == [0, 150_000_000, 300_000_000]


def test_a_rate_too_low_for_the_clock():
    with pytest.raises(ValueError, match=r"rate_per_s must be >= 1\.08e-09, got 1e-12"):
        arrival_ns(Poisson(rate_per_s=1e-12), 5, seed=0)


class TestDraws:
    def test_uniforms_are_pinned(self):
        """Philox keyed by SHA-256 of "seed/stream": a change here changes every generated trace."""
        assert uniforms(7, "x", 3).tolist() == PINNED

    @pytest.mark.parametrize(
        "draw",
        [
            lambda n: uniforms(1, "s", n),
            lambda n: normals(1, "s", n),
            lambda n: gammas(1, "s", n, 0.3),
            lambda n: gammas(1, "s", n, 2.5),
            lambda n: picks(1, "s", n, [1, 2, 3]),
        ],
    )
    def test_a_draw_does_not_depend_on_how_many_there_are(self, draw):
        assert np.array_equal(draw(1000)[:100], draw(100))

    def test_streams_and_seeds_differ(self):
        drawn = [tuple(uniforms(seed, stream, 4)) for seed in (0, 1) for stream in ("a", "b")]
        assert len(set(drawn)) == 4

    def test_uniforms_stay_inside_0_and_1(self):
        u = uniforms(0, "u", 100_000)
        assert 0 < u.min() < 1e-4
        assert 1 - 1e-4 < u.max() < 1
        assert u.mean() == pytest.approx(0.5, abs=0.005)

    def test_normals(self):
        z = normals(0, "z", 100_000)
        assert (z.mean(), z.std()) == (pytest.approx(0, abs=0.01), pytest.approx(1, rel=0.01))
        assert (z > 1.6449).mean() == pytest.approx(0.05, abs=0.003)

    @pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 1.5, 20.0])
    def test_gammas(self, shape):
        g = gammas(0, "g", 200_000, shape)
        assert g.mean() == pytest.approx(shape, rel=0.02)
        assert g.var() == pytest.approx(shape, rel=0.05)

    def test_picks_follow_the_weights(self):
        shares = np.bincount(picks(0, "p", 100_000, [1, 0, 3]), minlength=3) / 100_000
        assert shares.tolist() == [pytest.approx(0.25, abs=0.005), 0, pytest.approx(0.75, abs=0.005)]


class TestLengths:
    def test_fixed(self):
        assert length_tokens(Fixed(tokens=7), 3, 0, "x").tolist() == [7, 7, 7]

    def test_lognormal_mean_is_of_the_lengths_and_sigma_of_their_logarithm(self):
        lengths = Lognormal(mean_tokens=600, sigma=0.8, max_tokens=10_000_000)
        drawn = length_tokens(lengths, 200_000, 0, "x")
        assert drawn.mean() == pytest.approx(600, rel=0.01)
        assert np.log(drawn).std() == pytest.approx(0.8, rel=0.01)
        assert np.median(drawn) == pytest.approx(600 * math.exp(-0.32), rel=0.01)

    def test_lognormal_is_clipped(self):
        lengths = Lognormal(mean_tokens=100, sigma=2, min_tokens=50, max_tokens=200)
        drawn = length_tokens(lengths, 1000, 0, "x")
        assert (drawn.min(), drawn.max()) == (50, 200)

    def test_sigma_0_is_the_mean(self):
        assert set(length_tokens(Lognormal(mean_tokens=100, sigma=0), 9, 0, "x").tolist()) == {100}

    def test_empirical_of_a_column_has_its_shares(self):
        observed = Empirical.of(np.array([5, 9, 5, 5]))
        assert (observed.values, observed.weights) == ((5, 9), (3, 1))
        drawn = length_tokens(observed, 100_000, 0, "x")
        assert (drawn == 5).mean() == pytest.approx(0.75, abs=0.005)

    def test_empirical_without_weights_is_even(self):
        drawn = length_tokens(Empirical(values=(1, 2, 3, 4)), 100_000, 0, "x")
        assert np.bincount(drawn)[1:] / 100_000 == pytest.approx(np.full(4, 0.25), abs=0.01)


class TestGenerate:
    def test_same_seed_same_bytes_another_seed_another_trace(self):
        texts = ["".join(csv_lines(generate(config(RICH), seed))) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]

    def test_the_first_requests_do_not_depend_on_how_many_follow(self):
        few, many = generate(config(RICH, num_requests=100), 4), generate(config(RICH, num_requests=1000), 4)
        for name in ("prompt_tokens", "output_tokens", "max_tokens", "priority", "cancel_after_ns", "timeout_ns"):
            assert np.array_equal(getattr(few, name), getattr(many, name)[:100]), name
        assert few.clients == many.clients[:100]
        assert few.prefix.ids == many.prefix.ids[:100]
        stretch = many.arrival_ns[:100] / few.arrival_ns  # the one thing that num_requests changes
        assert stretch == pytest.approx(np.full(100, stretch[-1]), rel=1e-6)

    def test_one_concern_does_not_move_another(self):
        plain, rich = generate(config(), 4), generate(config(RICH), 4)
        assert np.array_equal(plain.arrival_ns, rich.arrival_ns)
        assert np.array_equal(plain.output_tokens, rich.output_tokens)
        own = rich.prompt_tokens - np.array([128 if ids else 0 for ids in rich.prefix.ids])
        assert np.array_equal(plain.prompt_tokens, own)

    def test_what_the_recipe_leaves_out_is_absent(self):
        trace = generate(config(), 0)
        assert (trace.name, trace.format) == ("synthetic", "synthetic")
        assert (trace.max_tokens == UNKNOWN).all()
        assert (trace.priority, trace.clients, trace.prefix) == (None, None, None)
        assert (trace.queue_timeout_ns, trace.timeout_ns, trace.cancel_after_ns) == (None, None, None)
        assert trace.notes == ("generated with seed 0",)

    def test_timeouts_cancels_priorities_clients(self):
        trace = generate(config(RICH, num_requests=20_000), 0)
        assert set(trace.queue_timeout_ns.tolist()) == {1_500_000_000}
        assert set(trace.timeout_ns.tolist()) == {60_000_000_000}
        assert set(trace.cancel_after_ns.tolist()) == {UNKNOWN, 2_000_000_000}
        assert (trace.cancel_after_ns != UNKNOWN).mean() == pytest.approx(0.3, abs=0.02)
        assert set(trace.priority.tolist()) == {0, 5}
        assert (trace.priority == 5).mean() == pytest.approx(0.75, abs=0.02)
        assert trace.clients.count("b") / 20_000 == pytest.approx(2 / 3, abs=0.02)

    def test_max_tokens_by_rule(self):
        trace = generate(config(RICH), 0)
        assert trace.max_tokens.tolist() == [math.ceil(1.5 * tokens) for tokens in trace.output_tokens.tolist()]
        assert "factor:1.5" in trace.notes[-1]

    def test_shared_prefixes_are_whole_groups_of_few_kinds(self):
        trace = generate(config(RICH, num_requests=20_000), 0)
        assert trace.prefix.group_tokens == 32
        kinds = {ids for ids in trace.prefix.ids if ids}
        assert len(kinds) == 5
        assert sorted(i for ids in kinds for i in ids) == list(range(5 * 128 // 32))
        shared = [ids for ids in trace.prefix.ids if ids]
        assert len(shared) / 20_000 == pytest.approx(0.5, abs=0.02)
        counts = sorted((shared.count(kind) for kind in kinds), reverse=True)
        expected = np.array([1 / k for k in range(1, 6)])
        assert np.array(counts) / len(shared) == pytest.approx(expected / expected.sum(), abs=0.02)
        assert trace.prompt_tokens[[bool(ids) for ids in trace.prefix.ids]].min() > 128

    def test_uniform_popularity(self):
        prefixes = {"num_prefixes": 4, "prefix_tokens": 64, "zipf_exponent": 3}
        trace = generate(config(num_requests=20_000, prefixes=prefixes), 0)
        _, counts = np.unique([ids[0] for ids in trace.prefix.ids], return_counts=True)
        assert counts / 20_000 == pytest.approx(np.full(4, 0.25), abs=0.02)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"num_requests": 0}, ["num_requests must be >= 1, got 0"]),
        ({"num_request": 5}, ["num_request is not a known key; did you mean 'num_requests'?"]),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 0}}, ["arrivals.rate_per_s must be > 0, got 0"]),
        (
            {"arrivals": {"kind": "poison", "rate_per_s": 1}},
            ["arrivals.kind must be one of 'constant', 'poisson', 'gamma', got 'poison'"],
        ),
        (
            {"arrivals": {"kind": "gamma"}},
            ["arrivals.rate_per_s is missing", "arrivals.burstiness is missing"],
        ),
        ({"prompt_tokens": {"tokens": 5}}, ["prompt_tokens.kind is missing"]),
        (
            {"prompt_tokens": {"kind": "lognormal", "mean_tokens": 9, "sigma": 1, "min_tokens": 9, "max_tokens": 8}},
            ["prompt_tokens.min_tokens must be <= max_tokens=8, got 9"],
        ),
        (
            {"output_tokens": {"kind": "empirical", "values": [1, 2], "weights": [1]}},
            ["output_tokens.weights must be 2, as values, got 1"],
        ),
        (
            {"output_tokens": {"kind": "empirical", "values": [1, 2], "weights": [0, 0]}},
            ["output_tokens.weights must not all be 0"],
        ),
        (
            {"output_tokens": {"kind": "empirical", "values": []}},
            ["output_tokens.values must have at least 1 item, got []"],
        ),
        (
            {"prefixes": {"num_prefixes": 1, "prefix_tokens": 100}},
            ["prefixes.prefix_tokens must be a multiple of group_tokens=64, got 100"],
        ),
        (
            {"max_tokens": "fix:3"},
            ["max_tokens rule must be one of model_len, fixed:N, factor:F, true, got 'fix:3'"],
        ),
        (
            {"max_tokens": "model_len"},
            ["max_tokens=model_len is what a replay does for requests that name none: leave it out"],
        ),
        ({"clients": {"a": 0}}, ["clients.a must be > 0, got 0"]),
        ({"timeout_s": "soon"}, ["timeout_s must be a valid number, got 'soon'"]),
    ],
)
def test_what_is_wrong_with_a_recipe(changes, lines):
    with pytest.raises(ValidationError) as error:
        config(**changes)
    assert problems(error.value) == lines
    assert lines[0] in str(error.value)


def test_recipes_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        config().num_requests = 3
