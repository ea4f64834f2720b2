"""All figures of a run, in the order of the report."""

from __future__ import annotations

from sim.results.clients import client_rows
from sim.results.figures.drawing import Picture
from sim.results.figures.load import backlog_picture, batch_picture, blocked_picture, kv_picture
from sim.results.figures.losses import client_picture, lost_picture
from sim.results.figures.tail import latency_pictures, step_picture
from sim.results.measure import Measured
from sim.results.metrics import Metrics


def album(measured: Measured, metrics: Metrics) -> list[Picture]:
    return [
        *latency_pictures(measured, metrics),
        backlog_picture(measured, metrics),
        blocked_picture(measured, metrics),
        kv_picture(measured, metrics),
        batch_picture(measured, metrics),
        step_picture(measured, metrics),
        lost_picture(metrics),
        client_picture(client_rows(measured), metrics),
    ]
