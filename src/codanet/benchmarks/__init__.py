"""Speed and memory: `codanet bench`, and the paper's Algorithm 1 that it is measured against."""
