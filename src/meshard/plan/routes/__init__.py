"""Ways between two layouts through others: replicas in turns, two phases, retiling first."""
