from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.errors import DocumentError
from imgbuild.steps.check import check_image

if TYPE_CHECKING:
    from tests.support.tiny import Tiny


def test_a_source_that_is_not_there_is_named_once_with_its_file_steps_and_those_that_there_are(tiny: Tiny) -> None:
    step = tiny.layers["tiny-adapter"][0]
    step["source"] = "adaptor"
    tiny.layers["tiny-adapter"].append({**step, "path": "/opt/again"})
    tiny.write()
    with pytest.raises(DocumentError) as caught:
        check_image(tiny.project().load("tiny"))
    assert caught.value.subject == "layers/tiny-adapter/layer.toml"
    assert caught.value.problems == (
        "step tiny-adapter/1, tiny-adapter/3: 'adaptor' is not a source of kind git; there are adapter",
    )


def test_a_source_of_another_kind_is_none_of_the_kind(tiny: Tiny) -> None:
    tiny.layers["tiny-nccl"][0]["source"] = "helper"
    tiny.write()
    with pytest.raises(DocumentError, match=r"'helper' is not a source of kind wheel-member; there are nccl$"):
        check_image(tiny.project().load("tiny"))


def test_a_licence_that_is_no_expression_is_named_with_its_source(tiny: Tiny) -> None:
    path = tiny.root / "locks" / "tiny.toml"
    text = path.read_text()
    assert '"licence" = "' in text
    path.write_text(text.replace('"licence" = "', '"licence" = "not one of '))
    with pytest.raises(DocumentError, match=r"locks/tiny\.toml: sources\.adapter\.licence: "):
        check_image(tiny.project().load("tiny"))
