"""The ground floor: pure values that say where things are.

Worlds, meshes, specs, shardings, layouts, boxes, maps between dims, and the rules of operations.
"""
