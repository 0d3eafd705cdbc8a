# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PageRank, components and shortest ways of igraph over a made graph."""

import random

import igraph

random.seed(7)
graph = igraph.Graph.Barabasi(200_000, 8, directed=False)
ranks = graph.pagerank(implementation="prpack")
print(graph.ecount(), max(range(len(ranks)), key=ranks.__getitem__), round(max(ranks), 9))
print(len(graph.connected_components()), sum(graph.distances(0)[0]), max(graph.coreness()))
