# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The managers of the evaluation are those that the command tells."""

from pathlib import Path

import pytest

from demeter_lab.evaluation import records
from demeter_lab.evaluation.records import RecordError


@pytest.mark.parametrize(
    ("tells", "what"),
    [
        ("[]", "has no managers"),
        ("rows: none", "is not understood"),
        ('[{"name": "none"}]', "is not understood"),
    ],
)
def test_managers_are_those_that_the_command_tells(tells: str, what: str, tmp_path: Path) -> None:
    demeter = tmp_path / "demeter"
    demeter.write_text(f"#!/bin/sh\n[ \"$*\" = 'vm managers --json' ] && echo '{tells}'\n")
    demeter.chmod(0o755)
    with pytest.raises(RecordError, match=what):
        records.systems_of(demeter)
    demeter.write_text('#!/bin/sh\necho \'[{"row": "none"}, {"row": "tpp-h"}]\'\n')
    assert records.systems_of(demeter) == ["none", "tpp-h"]
    with pytest.raises(RecordError, match="cannot be asked"):
        records.systems_of(tmp_path / "nothing")
