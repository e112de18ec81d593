"""Messages over sockets between processes that share no MPI, and how they find each other."""
