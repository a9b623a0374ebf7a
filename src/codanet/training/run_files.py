"""What a training run is made of on disk; light to import, for code that only reads a run."""

LAST, BEST = "last.ckpt", "best.ckpt"  # checkpoints
MODEL = "model.safetensors"  # the weights, once the run has ended
SETTINGS = "settings.json"
LOGS, MAPS = "logs", "maps"  # folders
FEATURES = "features"  # holds those of photographs until the run is finished
FIRST_STAGE = "stage-1"  # the folder of the first stage, where there are two, inside that of the second
