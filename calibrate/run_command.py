"""`tokenwork calibrate run`: times a model's own work on this machine and writes a samples file."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calibrate.cases import cases
from calibrate.models import ModelError, timed_model
from calibrate.records import ClockKind, Header, Measurement, SamplesWriter
from costmodel.specs import ModelSpec
from sim.commands.errors import Failure, wrong_use

if TYPE_CHECKING:
    from calibrate.environment import Platform

FILE_NAME = "samples.jsonl"
MOST_MINUTES = 24 * 60

Device = Literal["cpu", "cuda"]
Clock = Literal["wall", "cpu"]
Kernels = Literal["auto", "sdpa"]
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says, checked."""

    device: Device
    model: ModelSpec
    dtype: Dtype
    minutes: float
    threads: int
    clock: ClockKind
    kernels: Kernels
    seed: int


def run(
    out: Annotated[Path, typer.Option(help="Directory of the samples file; a run that is there goes on.")],
    device: Annotated[Device, typer.Option(help="What to time.")] = "cpu",
    model: Annotated[str, typer.Option(help="A name, or a config.json of a Llama-like model.")] = "small-llama",
    dtype: Annotated[Dtype | None, typer.Option(help="Default: float32 on the CPU, bfloat16 on CUDA.")] = None,
    minutes: Annotated[float, typer.Option(help="Time for the whole run, earlier parts of it included.")] = 5.0,
    threads: Annotated[int, typer.Option(help="Compute threads on the CPU, each on its own core.")] = 1,
    clock: Annotated[Clock, typer.Option(help="On the CPU; `cpu` leaves out what other processes used.")] = "wall",
    kernels: Annotated[Kernels, typer.Option(help="Of attention; `auto`: FlashInfer on CUDA if installed.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the sizes and their order.")] = 0,
) -> None:
    """Time GEMMs, attention over paged KV, verification, mixed steps, copies and launches of a model on this machine.

    Writes DIR/samples.jsonl task by task: interrupt it at any time, and the same command goes on. One thread is the
    default because two that share a core with anything else wait for each other; use more on a machine of your own.
    """
    started_s = time.monotonic()
    options = _checked(device, model, dtype, minutes=minutes, threads=threads, clock=clock, kernels=kernels, seed=seed)
    path = out / FILE_NAME
    out.mkdir(parents=True, exist_ok=True)
    try:
        done = _measured(options, path, started_s)
    except ModelError as error:
        raise wrong_use(f"--model: {error}") from None
    except ValueError as error:
        raise Failure(str(error), 1) from None
    except KeyboardInterrupt:
        kept = f"what was timed is in {path}, the same command goes on" if path.exists() else "nothing was timed yet"
        raise Failure(f"interrupted; {kept}", 130) from None
    _report(done, path, options)


def _checked(
    device: Device,
    model: str,
    dtype: Dtype | None,
    *,
    minutes: float,
    threads: int,
    clock: Clock,
    kernels: Kernels,
    seed: int,
) -> RunOptions:
    if not 0 < minutes <= MOST_MINUTES:
        raise wrong_use(f"--minutes must be > 0 and at most {MOST_MINUTES}, got {minutes:g}")
    cores = len(os.sched_getaffinity(0))
    if not 1 <= threads <= cores:
        raise wrong_use(f"--threads must be 1 to {cores} (the cores this process may use), got {threads}")
    if clock == "cpu" and (threads > 1 or device == "cuda"):
        given = f"--device {device} --threads {threads}"
        raise wrong_use(f"--clock cpu adds up what threads use: it goes with --device cpu --threads 1, got {given}")
    if seed < 0:
        raise wrong_use(f"--seed must be >= 0, got {seed}")
    try:
        spec = timed_model(model)
    except ModelError as error:
        raise wrong_use(f"--model: {error}") from None
    if find_spec("torch") is None:
        raise wrong_use("calibrate run needs torch, which is not installed: pip install 'tokenwork[calibrate]'")
    if dtype is None:
        dtype = "float32" if device == "cpu" else "bfloat16"
    kind: ClockKind = "process_cpu" if clock == "cpu" else "monotonic"
    return RunOptions(device, spec, dtype, minutes, threads, kind, kernels, seed)


def _measured(options: RunOptions, path: Path, started_s: float) -> list[Measurement]:
    # torch is loaded here and not before: fit, check and weights work without it
    from calibrate.environment import DTYPES, CpuPlatform, NoDevice, open_cuda, pinned_threads

    if options.device == "cpu":
        with pinned_threads(options.threads, options.clock):
            return _timed(CpuPlatform(options.threads, options.clock), options, path, started_s)
    try:
        at = open_cuda(options.model, DTYPES[options.dtype], use_flashinfer=options.kernels == "auto")
    except NoDevice as error:
        raise wrong_use(f"--device {options.device}: {error}") from None
    # not pinned: the driver's own threads, and compilers of kernels, need the other cores
    return _timed(at, options, path, started_s)


def _timed(at: Platform, options: RunOptions, path: Path, started_s: float) -> list[Measurement]:
    from calibrate.environment import BLOCK_TOKENS, DTYPES, is_out_of_memory, software_info
    from calibrate.run import Budget, run_cases
    from calibrate.workbench import Workbench

    dtype = DTYPES[options.dtype]
    limits = at.limits(options.model, dtype)
    header = Header(
        device=at.info(),
        software=software_info(at),
        model=options.model,
        dtype=options.dtype,
        block_tokens=BLOCK_TOKENS,
        created=date.today().isoformat(),
        seed=options.seed,
        minutes=options.minutes,
    )
    with SamplesWriter(path, header) as writer:
        if writer.found:
            print(f"going on with {path}: {len(writer.found)} tasks are there", file=sys.stderr)
        try:
            bench = Workbench(at, options.model, limits, dtype)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"the weights of {options.model.name} and {limits.pool_tokens:,} tokens of KV do not fit into the "
                "memory that is free: end other programs on the device"
            ) from None
        order = cases(options.model, limits, options.seed)
        return run_cases(bench, writer, order, Budget(options.minutes * 60, started_s))


def _report(done: list[Measurement], path: Path, options: RunOptions) -> None:
    from calibrate.run import noise_warning, summary

    print(summary(done))
    print(f"\nsamples: {path}\nnext: tokenwork calibrate fit {path} --out profile.json")
    again = f"tokenwork calibrate run --out {path.parent}-again"
    if options.device == "cpu" and options.clock == "monotonic":
        again += " --clock cpu (leaves out what other processes used)"
    warning = noise_warning(done, again)
    if warning:
        print(warning, file=sys.stderr)
    if not any(measurement.outcome == "ok" for measurement in done):
        raise Failure(f"{path}: no task could be timed", 1)
