"""Running a function without data, to write down what it does."""
