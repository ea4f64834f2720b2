"""Traces that come with the package."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np
import pytest

from workloads.bundled import bundled_names, bundled_trace, rebuilt, recipe
from workloads.synthetic import generate


def test_there_is_one():
    assert bundled_names() == ("chat-1k",)


@pytest.mark.parametrize("name", bundled_names())
def test_the_stored_file_is_what_its_recipe_makes(name):
    """Rebuild with `python -m workloads.bundled NAME > workloads/bundled/NAME.csv.gz`."""
    stored = (files("workloads.bundled") / f"{name}.csv.gz").read_bytes()
    assert gzip.decompress(stored) == gzip.decompress(rebuilt(name))
    assert stored[4:8] == rebuilt(name)[4:8] == bytes(4)  # no time of making
    assert len(stored) < 30_000


@pytest.mark.parametrize("name", bundled_names())
def test_reading_it_gives_the_generated_trace(name):
    stored, made = bundled_trace(name), generate(*recipe(name))
    for column in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens"):
        assert np.array_equal(getattr(stored, column), getattr(made, column)), column
    assert stored.prefix == made.prefix
    assert (stored.format, stored.notes) == ("generic-csv", ())


def test_chat_1k_is_a_chat():
    trace = bundled_trace("chat-1k")
    assert len(trace) == 1000
    assert trace.arrival_ns[-1] / 1e9 == pytest.approx(1000 / 12)
    assert trace.prompt_tokens.mean() == pytest.approx(600, rel=0.05)
    assert trace.output_tokens.mean() == pytest.approx(180, rel=0.05)
    assert trace.prefix.group_tokens == 64
    assert sum(1 for ids in trace.prefix.ids if ids) == pytest.approx(500, abs=50)


def test_an_unknown_name_lists_what_exists():
    with pytest.raises(ValueError, match="bundled trace must be one of chat-1k, got 'chat'"):
        bundled_trace("chat")
