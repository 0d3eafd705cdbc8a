# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Groups, joins and sorts of polars over a table of ten times rows.csv, by its own threads."""

import polars

one = polars.read_csv("rows.csv", has_header=False, new_columns=["id", "name", "x"])
table = polars.concat([one.with_columns(part=polars.lit(part)) for part in range(10)])
groups = table.group_by("name", "part").agg(polars.sum("x"), polars.max("id"))
both = table.join(groups, on=["name", "part"], suffix="_of_group").sort("x", "id", "part")
print(len(both), both["id_of_group"].sum(), round(float(both["x_of_group"].sum()), 3))
print(
    both.gather_every(len(both) // 20)
    .with_columns(polars.col("x", "x_of_group").round(6))
    .write_csv()
)
