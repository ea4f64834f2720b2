"""Where a run happens: what a device must offer (`Platform`), the CPU as one, and what the samples say of it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from calibrate.cases import Limits
from calibrate.kernels import PagedAttention, TorchPagedAttention
from calibrate.models import ModelError
from calibrate.paged import PagedSequence
from calibrate.records import ClockKind, DeviceInfo, Kernels, SoftwareInfo
from calibrate.timing import Clock, CpuClock, Run
from calibrate.transformer import Transformer
from costmodel.specs import ModelSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BLOCK_TOKENS = 16

CPU_MAX_TOKENS, CPU_MAX_REQUESTS, CPU_POOL_TOKENS = 2048, 128, 65_536
CPU_MEMORY_RATIO = 0.25
"""Other programs live on the same memory."""
SMALLEST_BLOCKS_EACH = 4
"""A pool with less than so many blocks for each of the most requests holds no step worth timing."""
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class NoDevice(ValueError):
    """A device that was asked for and is not there."""


class Platform(Protocol):
    """A device, its clock, its kernels. All that differs between the CPU and CUDA is behind this."""

    @property
    def device(self) -> torch.device: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def kernels(self) -> Kernels: ...

    @property
    def kernels_version(self) -> str | None:
        """Of the package they come from, where that is not torch."""

    def info(self) -> DeviceInfo: ...

    def limits(self, model: ModelSpec, dtype: torch.dtype) -> Limits:
        """How large cases may get. Raises ModelError if the model does not fit."""

    def attention(self, model: ModelSpec, num_blocks: int, dtype: torch.dtype) -> PagedAttention: ...

    def step_run(self, model: Transformer, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> Run:
        """What an engine does for this batch, ready to be executed again and again."""

    def host_buffer(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        """Host memory that blocks are swapped to."""

    def release(self) -> None:
        """Give cached memory back, after an allocation failed."""


class CpuPlatform:
    """The CPU, with as many threads as asked for; `process_cpu` is for one."""

    device = torch.device("cpu")
    kernels: Kernels = "sdpa"
    kernels_version = None

    def __init__(self, threads: int, clock: ClockKind) -> None:
        self.clock = CpuClock(time.process_time_ns if clock == "process_cpu" else time.perf_counter_ns)
        self._clock = clock
        self._threads = threads

    def info(self) -> DeviceInfo:
        name, mhz = _cpu_name_and_mhz()
        return DeviceInfo(
            name=name,
            kind="cpu",
            driver=None,
            memory_bytes=_memory_bytes(),
            threads=self._threads,
            clock=self._clock,
            clocks_mhz={"at_start": mhz} if mhz else {},
        )

    def limits(self, model: ModelSpec, dtype: torch.dtype) -> Limits:
        room = int(_memory_bytes() * CPU_MEMORY_RATIO)
        return memory_limits(model, dtype, room, CPU_MAX_TOKENS, CPU_MAX_REQUESTS, CPU_POOL_TOKENS)

    def attention(self, model: ModelSpec, num_blocks: int, dtype: torch.dtype) -> PagedAttention:
        return TorchPagedAttention(model, num_blocks, BLOCK_TOKENS, dtype=dtype, device=self.device)

    def step_run(self, model: Transformer, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> Run:
        return lambda: model.step(token_ids, batch)

    def host_buffer(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        return torch.zeros((num_blocks, block_bytes), dtype=torch.uint8)

    def release(self) -> None:
        """The CPU's allocator keeps nothing."""


def memory_limits(
    model: ModelSpec, dtype: torch.dtype, room_bytes: int, max_tokens: int, max_requests: int, most_pool_tokens: int
) -> Limits:
    """Limits of a device that has `room_bytes` for weights and KV."""
    weight_bytes = model.parameters * dtype.itemsize
    token_bytes = model.kv_bytes_per_token(dtype.itemsize)
    pool_tokens = min((room_bytes - weight_bytes) // token_bytes, max_requests * model.max_model_len, most_pool_tokens)
    smallest = max_requests * min(model.max_model_len, SMALLEST_BLOCKS_EACH * BLOCK_TOKENS)
    if pool_tokens < smallest:
        raise ModelError(
            f"model {model.name} needs {weight_bytes + smallest * token_bytes:,} bytes for its weights and the smallest"
            f" useful pool, the device has {room_bytes:,} for them"
        )
    return Limits(
        max_tokens=min(max_tokens, pool_tokens // 4),
        max_requests=max_requests,
        max_context_tokens=min(model.max_model_len, pool_tokens - BLOCK_TOKENS),
        pool_tokens=pool_tokens // BLOCK_TOKENS * BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        block_bytes=token_bytes * BLOCK_TOKENS,
    )


def open_cuda(model: ModelSpec, dtype: torch.dtype, *, use_flashinfer: bool) -> Platform:
    """Raises NoDevice if torch cannot use one."""
    if not torch.cuda.is_available():
        raise NoDevice(f"torch {torch.__version__} sees no CUDA device here; --device cpu works everywhere")
    from calibrate.cuda import CudaPlatform

    return CudaPlatform(model, dtype, use_flashinfer=use_flashinfer)


def software_info(at: Platform) -> SoftwareInfo:
    return SoftwareInfo(
        python=platform.python_version(),
        torch=torch.__version__,
        kernels=at.kernels,
        kernels_version=at.kernels_version,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Also where an error followed from it: the end of a CUDA graph whose capture ran out of memory raises its own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


@contextmanager
def pinned_threads(threads: int, clock: ClockKind) -> Iterator[None]:
    """Keep this process, and the compute threads it starts, on so many cores.

    Where CPU time is counted, cores are shared: the system may move it to the one that is idle.
    """
    before, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(threads)
    if clock != "process_cpu":
        os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(before)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_name_and_mhz() -> tuple[str, float | None]:
    """As Linux tells; elsewhere the architecture only."""
    name, mhz = platform.machine(), None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return name, mhz
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() == "cpu MHz":
            mhz = round(float(value), 1)
    return name, mhz
