"""How a run is trained: on Lightning, resumable, on one process or many.

Nothing here is imported before training starts: Lightning takes seconds to load.
"""
