"""Linear systems solved by repeated products: the methods of Krylov spaces."""
