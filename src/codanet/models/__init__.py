"""The networks: a CoDA-Net, the linear map it is for an input, explanations, the zoo and weights; a ResNet beside."""
