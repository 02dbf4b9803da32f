"""How alike two networks' representations are: measures on activations, each beside what chance gives."""

from canon.similarity.activations import Computed, Source, Stored
from canon.similarity.comparing import Options, similarity
from canon.similarity.measures import DEFAULT, MEASURES, Measure
from canon.similarity.null import Figure
from canon.similarity.of_arrays import measure, measured
from canon.similarity.probes import Probes
from canon.similarity.result import Similarity

__all__ = [
    "DEFAULT",
    "MEASURES",
    "Computed",
    "Figure",
    "Measure",
    "Options",
    "Probes",
    "Similarity",
    "Source",
    "Stored",
    "measure",
    "measured",
    "similarity",
]
