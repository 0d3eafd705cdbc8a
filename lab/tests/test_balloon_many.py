# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How the fleet's command sees a policy that does nothing, of sizes that are made up."""

from demeter_lab.balloon.many import has_acted, sizes_of


def views(**sizes: int) -> list[dict]:
    """Return what the daemon would say of guests with so much of each tier."""
    return [
        {"name": name, "tiers": [{"size_bytes": size}, {"size_bytes": size}]}
        for name, size in sizes.items()
    ]


def test_who_comes_or_goes_is_no_act_of_a_policy() -> None:
    """Only sizes of guests that stay tell that something was done."""
    all_of_them = sizes_of(views(a=144, b=144))
    assert not has_acted(all_of_them, all_of_them)
    assert not has_acted(all_of_them, sizes_of(views(a=144)))
    assert not has_acted(sizes_of(views(a=144)), all_of_them)
    assert has_acted(all_of_them, sizes_of(views(a=108, b=108)))
    assert has_acted(sizes_of(views(a=108)), all_of_them)
