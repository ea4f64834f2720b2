"""Quantities over time, cut into bins so that a figure of a long run stays small: mean, lowest and highest per bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.core.plan import Blocker
from sim.results.arrays import FloatArray, IntArray, view
from sim.results.blocked import WAITED_FOR, blocker_steps
from sim.results.measure import NS_PER_S, Measured
from sim.results.steps import Plans

POLICY = WAITED_FOR.index(Blocker.POLICY)


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity at points in time, straight in between; a jump is two points at the same time."""

    time_ns: IntArray
    value: FloatArray

    def sides(self, at_ns: IntArray) -> tuple[FloatArray, FloatArray]:
        """Values just before and just after some instants; constant outside of the curve, 0 without any points."""
        if not len(self.time_ns):
            return np.zeros(len(at_ns)), np.zeros(len(at_ns))
        before, after = (np.interp(at_ns, self.time_ns, self.value) for _ in range(2))
        first = np.searchsorted(self.time_ns, at_ns, side="left")
        last = np.searchsorted(self.time_ns, at_ns, side="right") - 1
        met = first <= last  # there is a point at this very instant
        before[met], after[met] = self.value[first[met]], self.value[last[met]]
        return before, after

    def area_until(self, at_ns: IntArray) -> FloatArray:
        """Integral from the first point on. Unit: value x ns"""
        if not len(self.time_ns):
            return np.zeros(len(at_ns))
        pieces = np.diff(self.time_ns) * (self.value[1:] + self.value[:-1]) / 2
        upto = np.concatenate([[0.0], np.cumsum(pieces)])
        point = np.maximum(np.searchsorted(self.time_ns, at_ns, side="right") - 1, 0)
        before, _ = self.sides(at_ns)
        area: FloatArray = upto[point] + (at_ns - self.time_ns[point]) * (self.value[point] + before) / 2
        return area


@dataclass(frozen=True, slots=True)
class Band:
    """Shape of each: (num_bins,)"""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


def band(curve: Curve, edges_ns: IntArray) -> Band:
    """Mean over time, lowest and highest value in each bin. `edges_ns` ascends strictly."""
    before, after = curve.sides(edges_ns)
    low, high = np.minimum(after[:-1], before[1:]), np.maximum(after[:-1], before[1:])
    bin_of = np.searchsorted(edges_ns, curve.time_ns, side="left") - 1
    inside = (curve.time_ns > edges_ns[0]) & (curve.time_ns < edges_ns[-1])
    inside &= curve.time_ns != edges_ns[np.clip(bin_of + 1, 0, len(edges_ns) - 1)]
    np.minimum.at(low, bin_of[inside], curve.value[inside])
    np.maximum.at(high, bin_of[inside], curve.value[inside])
    return Band(np.diff(curve.area_until(edges_ns)) / np.diff(edges_ns), low, high)


def edges_ns(measured: Measured, num_bins: int) -> IntArray:
    """Equal bins over the run; shape: (num_bins + 1,)"""
    end_ns = max(measured.end_ns, measured.start_ns + num_bins)
    return np.linspace(measured.start_ns, end_ns, num_bins + 1).astype(np.int64)


def seconds(edges: IntArray) -> FloatArray:
    """Middle of each bin since the run's zero."""
    return (edges[:-1] + edges[1:]) / 2 / NS_PER_S


# -- requests


def population(enters_ns: IntArray, leaves_ns: IntArray) -> Curve:
    """How many are inside, from when each enters and leaves. Shape of both: (num_requests,)"""
    times, which = np.unique(np.concatenate([enters_ns, leaves_ns]), return_inverse=True)
    change = np.bincount(which[: len(enters_ns)], minlength=len(times)) - np.bincount(
        which[len(enters_ns) :], minlength=len(times)
    )
    after = np.cumsum(change)
    return Curve(np.repeat(times, 2), np.stack([after - change, after], axis=1).ravel().astype(np.float64))


def waiting(measured: Measured, engine: int | None = None) -> Curve:
    """Requests that have come and were not admitted yet (those put back by a preemption are not counted)."""
    mine = measured.waits if engine is None else measured.waits & (view(measured.result.requests.engine) == engine)
    return population(measured.result.trace.arrival_ns[mine], measured.wait_until_ns[mine])


def _in_queue_and_outside(measured: Measured, engine: int) -> tuple[Curve, Curve]:
    """Of an engine's waiting requests: those in its own queue, and those that its front keeps outside."""
    mine = measured.waits & (view(measured.result.requests.engine) == engine)
    came_in_ns = measured.came_in_ns[mine]
    return (
        population(came_in_ns, measured.wait_until_ns[mine]),
        population(measured.result.trace.arrival_ns[mine], came_in_ns),
    )


def waiting_by_blocker(measured: Measured, edges: IntArray) -> FloatArray:
    """Mean number of requests waiting for each blocker. Shape: (len(WAITED_FOR), num_bins)"""
    out = np.zeros((len(WAITED_FOR), len(edges) - 1))
    for engine, log in enumerate(measured.result.logs):
        since, place = blocker_steps(log)
        cuts = np.union1d(edges, since[(since > edges[0]) & (since < edges[-1])])
        in_queue, outside = _in_queue_and_outside(measured, engine)
        bins = np.searchsorted(edges, cuts[:-1], side="right") - 1
        blocker = place[np.searchsorted(since, cuts[:-1], side="right") - 1]
        for curve, place_of_each in ((in_queue, blocker), (outside, np.full_like(blocker, POLICY))):
            means = band(curve, cuts).mean if len(cuts) > 1 else np.zeros(0)
            np.add.at(out, (place_of_each, bins), means * np.diff(cuts))
    return out / np.diff(edges)


def rate_per_s(time_ns: IntArray, edges: IntArray) -> FloatArray:
    """Occurrences per second in each bin."""
    return np.histogram(time_ns, edges)[0] / (np.diff(edges) / NS_PER_S)


# -- plans


def of_plans(plans: Plans, first: FloatArray | IntArray, last: FloatArray | IntArray | None = None) -> Curve:
    """A quantity that each plan has at its start and its end (None: the same), and that is 0 while the engine idles."""
    last = first if last is None else last
    starts, ends = plans.start_ns, plans.end_ns
    idle = np.append(starts[1:] > ends[:-1], True) if len(starts) else np.zeros(0, bool)
    following = np.append(starts[1:], ends[-1:])
    times = np.stack([starts, ends, ends, following], axis=1)
    values = np.stack([first, last, np.zeros(len(starts)), np.zeros(len(starts))], axis=1)
    used = np.stack([np.ones(len(starts), bool), np.ones(len(starts), bool), idle, idle], axis=1)
    return Curve(times[used], values[used].astype(np.float64))
