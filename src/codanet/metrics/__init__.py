"""The paper's measures of explanations, one file each; per-sample values, and `METRICS`, the list of them.

A metric takes `attribute(model, images, targets) -> maps [N, H, W]`, or the maps themselves.
"""

from .box import box_share
from .completeness import completeness
from .insertion import deletion, insertion
from .localisation import cell_shares, localisation
from .maps import Attribute, contributions
from .predictions import Predictions, confident_images, predict
from .registry import FAMILIES, METRICS, Metric, choose_metrics, usual_number
from .removal import removal
from .sanity import SanityCheck, sanity
from .scores import Scores

__all__ = [
    "FAMILIES",
    "METRICS",
    "Attribute",
    "Metric",
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
    "predict",
    "removal",
    "sanity",
    "usual_number",
]
