"""The names that help texts and the Tab key offer.

The registries that own them need PyTorch, and help must not wait for it. So they are written out here, and
tests/test_light.py checks that they equal the registries.
"""

METHODS = (
    "contributions",
    "grad",
    "ixg",
    "intgrad",
    "gradcam",
    "deeplift",
    "occlusion5",
    "occlusion9",
    "rise",
    "lime",
    "random",
)
METHODS_OF_THE_PAPER = METHODS[:8]
METRICS = (
    "accuracy",
    "localisation",
    "pointing",
    "difull",
    "dipart",
    "removal-least",
    "removal-most",
    "insertion",
    "deletion",
    "road",
    "box",
    "pointing-box",
    "completeness",
    "sanity",
)
FAMILIES = ("removal",)
QUANTUS = "quantus:"  # followed by the name of one of its metrics
METRICS_OF_THE_PAPER = ("accuracy", "localisation", "removal")
POINTS = 129  # on a removal curve
DATA_SETS = ("digits", "mnist", "cifar10", "tiny-imagenet", "imagenet100")
SPLITS = ("val", "test", "held-out", "train")
REPORT_SPLITS = ("held-out", "test")
PALETTES = ("red-blue", "orange-purple")
MAPS = ("float16", "png", "none")  # how a table of explanations keeps its maps
STYLES = ("map", "overlay", "weights")
EXPORT_FORMATS = ("onnx", "pt2")
BENCH_MODELS = ("s_coda", "s_coda_r1_2", "s_coda_r1_4", "s_coda_r1_8")
