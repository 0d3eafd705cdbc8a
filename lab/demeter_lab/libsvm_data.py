# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A made classification problem in libsvm's text format, for liblinear.

Features follow a power law, as words and clicks do: few are in most instances,
most in few. The label is the sign of a hidden weight vector's product with the
instance, with a tenth of the labels flipped.
"""

import random
from pathlib import Path


def write(path: Path, instances: int, features: int, per_instance: int, seed: int = 1) -> None:
    """Write ``instances`` lines to ``path``, the same for the same arguments.

    Args:
        path: text file to create; it appears only when complete.
        instances: lines.
        features: feature indices run from 1 to this.
        per_instance: features drawn for each line; fewer remain where a draw repeats.
        seed: of the generator.

    """
    draw = random.Random(seed).random
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("w") as out:
        for _ in range(instances):
            chosen = sorted({int(features * draw() ** 3) + 1 for _ in range(per_instance)})
            score = sum(((index * 2654435761) & 0xFFFF) - 0x8000 for index in chosen)
            label = (score > 0) != (draw() < 0.1)
            out.write("+1 " if label else "-1 ")
            out.write(" ".join(f"{index}:{1 + index % 7}" for index in chosen))
            out.write("\n")
    unfinished.replace(path)
