"""The JSON Schemas that are shipped, and how they are made from the classes.

`python -m imgbuild.cli.schemas` writes the files anew; a test fails if they differ from the classes.
"""

from __future__ import annotations

from importlib.resources import files

_DOCUMENTS = {
    "build-result": ("imgbuild.cli.results", "BuildDocument"),
    "check-result": ("imgbuild.cli.results", "CheckDocument"),
    "error": ("imgbuild.cli.results_error", "ErrorDocument"),
    "explain-result": ("imgbuild.cli.results_explain", "ExplainDocument"),
    "image": ("imgbuild.model.image", "ImageDefinition"),
    "inventory-result": ("imgbuild.cli.results", "InventoryDocument"),
    "layer": ("imgbuild.model.layer", "LayerDefinition"),
    "lock": ("imgbuild.model.lockfile", "Lock"),
    "lock-result": ("imgbuild.cli.results_lock", "LockDocument"),
    "nccl-result": ("imgbuild.cli.results_nccl", "NcclDocument"),
    "plan-result": ("imgbuild.cli.results", "PlanDocument"),
    "registries": ("imgbuild.model.registries", "RegistriesDocument"),
    "receipt": ("imgbuild.model.receipt", "Receipt"),
    "stand-in": ("imgbuild.model.inherit", "StandIn"),
    "verify-report": ("imgbuild.cli.results", "VerifyDocument"),
}


def names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(_DOCUMENTS)


def shipped(name: str) -> bytes:
    """The schema file in the package."""
    return files(__name__).joinpath(f"{name}.v1.json").read_bytes()


def generated(name: str) -> bytes:
    """The schema as the class gives it."""
    import importlib  # noqa: PLC0415 - only to make the files

    from imgbuild import jsontext  # noqa: PLC0415
    from imgbuild.model.decode import schema_of  # noqa: PLC0415

    module, kind = _DOCUMENTS[name]
    return jsontext.dumps(schema_of(getattr(importlib.import_module(module), kind), f"imgbuild/{name}/v1"))
