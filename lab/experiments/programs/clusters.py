# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A forest of scikit-learn over made points, and clusters of them, from one seed."""

import numpy
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier

chance = numpy.random.default_rng(7)
points = chance.normal(size=(60_000, 24)) + 5 * chance.integers(0, 4, size=(60_000, 1))
clusters = KMeans(4, n_init=1, random_state=7).fit(points)
print(sorted(numpy.bincount(clusters.labels_).tolist()))
kinds = (points[:, :3].sum(axis=1) > 25).astype(int)
forest = RandomForestClassifier(12, random_state=7, n_jobs=2).fit(points, kinds)
print(forest.predict(points).sum(), [tree.get_n_leaves() for tree in forest.estimators_])
