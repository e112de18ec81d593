"""Which dtypes operations give, and the kernels that operands of given dtypes need."""
