"""Which cost model to use: one small config class per kind, and `build_cost_model`, which makes the model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, model_validator

from costmodel.graphs import GraphBuckets
from costmodel.linear import LinearModel, Line
from costmodel.model import CostModel
from costmodel.profile import SMALLEST_STEP_S, load_profile
from costmodel.token_weights import TokenWeightsModel

StepSeconds = Annotated[float, Field(ge=SMALLEST_STEP_S, allow_inf_nan=False)]
TokenSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GraphsConfig(_Config):
    """CUDA-graph buckets. Without `sizes`: vLLM V1's default for `max_num_seqs`."""

    sizes: tuple[PositiveInt, ...] | None = None
    max_num_seqs: PositiveInt = 256
    eager_penalty_s: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _sizes_make_sense(self) -> Self:
        self.buckets()
        return self

    def buckets(self) -> GraphBuckets:
        if self.sizes is None:
            return GraphBuckets.vllm_v1(self.max_num_seqs, self.eager_penalty_s)
        return GraphBuckets(self.sizes, self.eager_penalty_s)


class LinearConfig(_Config):
    """a_s + b_s_per_token * tokens; steps with a prefill chunk may have their own a and b."""

    kind: Literal["linear"] = "linear"
    a_s: StepSeconds
    b_s_per_token: TokenSeconds
    prefill_a_s: StepSeconds | None = None
    prefill_b_s_per_token: TokenSeconds | None = None
    graphs: GraphsConfig | None = None

    def build(self) -> LinearModel:
        line = Line(self.a_s, self.b_s_per_token)
        prefill_line = Line(
            self.a_s if self.prefill_a_s is None else self.prefill_a_s,
            self.b_s_per_token if self.prefill_b_s_per_token is None else self.prefill_b_s_per_token,
        )
        return LinearModel(line, prefill_line, _buckets(self.graphs))


class ProfileConfig(_Config):
    """A calibrated profile: shipped, by name, or a path that ends in .json."""

    kind: Literal["profile"] = "profile"
    name: str
    graphs: GraphsConfig | None = GraphsConfig()

    def build(self) -> TokenWeightsModel:
        profile = load_profile(self.name)
        return TokenWeightsModel(profile.terms(), profile.range(), _buckets(self.graphs))


def _buckets(graphs: GraphsConfig | None) -> GraphBuckets | None:
    return graphs.buckets() if graphs else None


CostModelConfig = Annotated[LinearConfig | ProfileConfig, Field(discriminator="kind")]


def build_cost_model(config: CostModelConfig) -> CostModel:
    """The only place where a config's profile is read."""
    return config.build()
