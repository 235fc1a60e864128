"""Write all schema files anew."""

from pathlib import Path

from imgbuild.cli.schemas import generated, names

for name in names():
    (Path(__file__).parent / f"{name}.v1.json").write_bytes(generated(name))
