# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables as text: names to the left, figures to the right."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines with columns of one width each, a rule below the first.

    Raises:
        ValueError: a line has another number of cells than the first.

    """
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in (lines[0], rule, *lines[1:])
    )
