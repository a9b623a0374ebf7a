"""The networks: a CoDA-Net, the linear map it is for an input, explanations, the zoo, weights, and peers beside."""
