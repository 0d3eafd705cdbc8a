# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Groups, joins and sorts of pandas over a table of ten times rows.csv."""

import pandas

table = pandas.read_csv("rows.csv", names=["id", "name", "x"])
table = pandas.concat([table.assign(part=part) for part in range(10)], ignore_index=True)
groups = table.groupby(["name", "part"], sort=True).agg(x=("x", "sum"), id=("id", "max"))
both = table.merge(groups.reset_index(), on=["name", "part"], suffixes=("", "_of_group"))
ordered = both.sort_values(["x", "id", "part"], kind="stable")
print(len(ordered), ordered["id_of_group"].sum(), round(float(ordered["x_of_group"].sum()), 3))
print(ordered.iloc[:: len(ordered) // 20].round(6).to_csv(index=False))
