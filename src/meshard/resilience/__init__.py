"""What outlives a process: memberships that change, lost boxes brought back, other jobs fed."""
