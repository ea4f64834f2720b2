"""Policies that a scenario takes from Python files: which they are, where they lie, and the hashes of their content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.policies.files import file_sha256, is_file, without_folder

if TYPE_CHECKING:
    from sim.scenario import Policies, PolicyChoice


def policies_in_files(policies: Policies) -> dict[str, PolicyChoice]:
    """Kind -> choice, of those that name a file."""
    choices = {kind: getattr(policies, kind) for kind in type(policies).model_fields}
    return {kind: choice for kind, choice in choices.items() if choice is not None and is_file(choice.name)}


def found_from(policies: Policies, folder: Path) -> Policies:
    """With relative files counted from a folder."""
    found = {
        kind: choice.model_copy(update={"name": str(folder / choice.name)})
        for kind, choice in policies_in_files(policies).items()
    }
    return policies.model_copy(update=found) if found else policies


def with_hashes(policies: Policies) -> Policies:
    """With the hash of each file. Raises ValueError if there is no such file, or its content is not as given."""
    for kind, choice in policies_in_files(policies).items():
        try:
            digest = file_sha256(choice.name)
        except ValueError as error:
            raise ValueError(f"policies.{kind}: {error}") from None
        if choice.sha256 not in (None, digest):
            raise ValueError(
                f"policies.{kind}: {without_folder(choice.name)} has sha256 {digest}, "
                f"the scenario was made for {choice.sha256}"
            )
        policies = policies.model_copy(update={kind: choice.model_copy(update={"sha256": digest})})
    return policies


def notes_on(policies: Policies) -> list[str]:
    """For readers of a result: whose code it comes of."""
    return [
        f"{kind} policy from {without_folder(choice.name)}, sha256 {(choice.sha256 or '')[:16]}"
        for kind, choice in policies_in_files(policies).items()
    ]
