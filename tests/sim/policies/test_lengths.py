"""Windows of output lengths: ranks, what is forgotten, and how much one client can do to the others."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil
from random import Random

import pytest

from sim.policies.lengths import Lengths, SharedLengths, conformal_rank, quantile_rank


@pytest.mark.parametrize(
    ("n", "quantile", "rank"), [(1, 0.9, 1), (10, 0.9, 9), (11, 0.9, 10), (100, 0.9, 90), (4, 0.5, 2), (0, 0.5, 0)]
)
def test_the_quantile_is_the_smallest_length_that_covers_the_share(n: int, quantile: float, rank: int):
    """ceil(q n), without what floats add (0.9 x 10 is 9)."""
    assert quantile_rank(quantile)(n) == rank


@pytest.mark.parametrize(("n", "alpha", "rank"), [(9, 0.1, 9), (8, 0.1, 9), (99, 0.1, 90), (19, 0.05, 19), (0, 0.1, 1)])
def test_the_conformal_rank_is_one_more_careful(n: int, alpha: float, rank: int):
    """ceil((n + 1)(1 - alpha)); with 8 lengths none is long enough for 10 %."""
    assert conformal_rank(alpha)(n) == rank


def test_lengths_beyond_those_that_a_request_has():
    """Of 10, 20 .. 100: the median of all, of those above 50, and nothing above 100."""
    lengths = Lengths(window=20)
    for length in range(100, 0, -10):
        lengths.add(length)
    median = quantile_rank(0.5)
    assert [lengths.predict(median, have) for have in (0, 50, 59, 60, 99, 100)] == [50, 80, 80, 80, 100, None]
    assert lengths.predict(conformal_rank(0.05), 0) is None


def test_a_window_forgets_the_oldest():
    """Against a plain list."""
    rng, lengths, plain = Random(1), Lengths(window=7), deque[int](maxlen=7)
    for _ in range(200):
        length, have = rng.randint(1, 9), rng.randint(0, 9)
        lengths.add(length)
        plain.append(length)
        above = sorted(each for each in plain if each > have)
        expected = above[ceil(len(above) / 2) - 1] if above else None
        assert lengths.predict(quantile_rank(0.5), have) == expected
        assert len(lengths) == len(plain)


def test_a_shared_window_forgets_the_oldest_and_keeps_each_client_to_its_part():
    """Against a plain list of (client, length): who has its part replaces its own oldest, the others' stay."""
    rng, shared, plain = Random(2), SharedLengths(window=20, share=0.25, prior=4), list[tuple[str, int]]()
    for _ in range(400):
        client, length, have = rng.choice("aaaaaabcdefg"), rng.randint(1, 9), rng.randint(0, 9)
        mine = [at for at, (who, _) in enumerate(plain) if who == client]
        if len(mine) == 5:
            del plain[mine[0]]
        elif len(plain) == 20:
            del plain[0]
        plain.append((client, length))
        shared.add(client, length)
        most = max(Counter(who for who, _ in plain).values())
        filled = [each for _, each in plain] + [4] * max(0, ceil(most / 0.25) - len(plain))
        above = sorted(each for each in filled if each > have)
        expected = above[ceil(round(0.8 * len(above), 9)) - 1] if above else None
        assert shared.predict(quantile_rank(0.8), have) == expected


@pytest.mark.parametrize("lie", [1, 100_000])
@pytest.mark.parametrize("honest_clients", [1, 5, 40])
def test_one_client_cannot_poison_what_the_others_share(lie: int, honest_clients: int):
    """It sends ten times as much as all others, all of it very short or very long.

    The 90 % point stays among the honest lengths and the prior, because its share of the weight (5 %) is below 10 %.
    """
    rng, shared = Random(3), SharedLengths(window=256, share=0.05, prior=120)
    for _ in range(30):
        for client in range(honest_clients):
            shared.add(f"honest {client}", rng.randint(100, 140))
        for _ in range(10 * honest_clients):
            shared.add("liar", lie)
    predicted = shared.predict(quantile_rank(0.9), 0)
    assert predicted is not None
    assert 100 <= predicted <= 140


def test_alone_a_client_is_outweighed_by_the_prior():
    """5 % of the weight are its own lengths, 95 % the estimate."""
    shared = SharedLengths(window=100, share=0.05, prior=300)
    for _ in range(50):
        shared.add("only", 7)
    assert shared.predict(quantile_rank(0.9), 0) == 300
    assert shared.predict(quantile_rank(0.04), 0) == 7
    assert shared.predict(quantile_rank(0.9), 300) is None
