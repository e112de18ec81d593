"""The runtime: devices, blocks, the Array, and how blocks move."""
