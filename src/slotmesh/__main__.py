"""``python -m slotmesh``: the command line."""

from slotmesh.cli import main

if __name__ == "__main__":
    main()
