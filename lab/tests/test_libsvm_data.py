# SPDX-License-Identifier: Apache-2.0 OR MIT
from pathlib import Path

from demeter_lab import libsvm_data


def test_lines_are_what_liblinear_reads_and_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        libsvm_data.write(tmp_path / name, instances=200, features=1000, per_instance=20)
    lines = (tmp_path / "a").read_text().splitlines()
    assert lines == (tmp_path / "b").read_text().splitlines()
    assert len(lines) == 200
    labels = set()
    for line in lines:
        label, *pairs = line.split()
        labels.add(label)
        indices = [int(pair.split(":")[0]) for pair in pairs]
        assert indices == sorted(set(indices))
        assert indices[0] >= 1 and indices[-1] <= 1000
    assert labels == {"+1", "-1"}


def test_few_features_are_frequent(tmp_path: Path) -> None:
    libsvm_data.write(tmp_path / "a", instances=500, features=1000, per_instance=20)
    counts: dict[int, int] = {}
    for line in (tmp_path / "a").read_text().splitlines():
        for pair in line.split()[1:]:
            index = int(pair.split(":")[0])
            counts[index] = counts.get(index, 0) + 1
    in_first_eighth = sum(count for index, count in counts.items() if index <= 125)
    assert in_first_eighth > 0.4 * sum(counts.values())
