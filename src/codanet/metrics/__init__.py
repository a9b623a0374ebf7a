"""The paper's measures of explanations, one file each; per-sample values, and `METRICS`, the list of them.

A metric takes `attribute(model, images, targets) -> maps [N, H, W]`, or the maps themselves.
"""

from .box import box_share
from .classifier import Attribute, contributions, probabilities
from .completeness import completeness
from .insertion import deletion, insertion
from .localisation import Grids, cell_shares, localisation, make_grids, possible_grids
from .pictures import Pictures
from .predictions import Predictions, confident_images, predict
from .registry import FAMILIES, METRICS, Metric, choose_metrics, usual_number
from .removal import removal
from .sanity import SanityCheck, sanity
from .scores import Scores

__all__ = [
    "FAMILIES",
    "METRICS",
    "Attribute",
    "Grids",
    "Metric",
    "Pictures",
    "Predictions",
    "SanityCheck",
    "Scores",
    "box_share",
    "cell_shares",
    "choose_metrics",
    "completeness",
    "confident_images",
    "contributions",
    "deletion",
    "insertion",
    "localisation",
    "make_grids",
    "possible_grids",
    "predict",
    "probabilities",
    "removal",
    "sanity",
    "usual_number",
]
