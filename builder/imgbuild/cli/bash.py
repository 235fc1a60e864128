"""Completion for bash of words with colons and equals signs in them (`patch:NAME`, `oci:DIR`, `nccl=FILE`).

bash cuts words at each of `COMP_WORDBREAKS`, and replaces only what stands after the last one. So the line is what is
read here, and of what is offered that part is given. Imported when the shell asks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.shell_completion import BashComplete, add_completion_class, split_arg_string

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WORDS = "env COMP_WORDS="
_LINE = 'env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDBREAKS="$COMP_WORDBREAKS" COMP_WORDS='


@add_completion_class
class LineComplete(BashComplete):
    """As click's, by the line instead of the words."""

    source_template = BashComplete.source_template.replace(_WORDS, _LINE)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is typed, and that one up to the cursor."""
        line = os.environb[b"COMP_LINE"][: int(os.environ["COMP_POINT"])].decode("utf-8", "surrogateescape")
        words = split_arg_string(line)
        typed = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], typed

    def format_completion(self, item: CompletionItem) -> str:
        """Without what bash leaves as it is."""
        _, typed = self.get_completion_args()
        option, sign, _ = typed.partition("=")
        # Of `--option=value` click looks at the value alone.
        whole = f"{option}{sign}{item.value}" if sign and option.startswith("-") else item.value
        kept = max(typed.rfind(mark) for mark in os.environ.get("COMP_WORDBREAKS", "") + "\0") + 1
        return f"{item.type},{whole[kept:]}"
