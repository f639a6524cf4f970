"""The page in the browser: `slotmesh explore`, and the playground of the documentation."""
