"""PyTorch's tensors: their bits, their layouts, and moving them with `torch.distributed`."""
