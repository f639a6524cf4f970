"""Notes on Tables 2 to 5, shown with their numbers."""

NOTES = {
    "Table 2": """
The paper gives no schedule for this table; the number of steps is that of iDSPN, whose setup it
follows. Average precision pools the objects of all images. Images come from slotmesh's own CLEVR
world.

At distances of 0.25 and less, our results are below the paper's. Much of the gain comes in the last
tenth of training, after the learning rate has dropped to a tenth: in the first 2,730 of those
steps, AP 0.125 on validation images rises from 0.05 to 0.10 (SA), from 0.11 to 0.19 (SA-SH) and
from 0.22 to 0.32 (SA-MESH). Longer annealing is therefore the first thing to try. Rows whose names
end in *beyond* do this: they are not the paper's experiment but ours, with 200,000 images, 200,000
steps, a cosine learning rate, and a moving average of the weights, the same for all variants
(`python -m paper table2 --variants SA-beyond SA-SH-beyond SA-EMD-beyond SA-MESH-beyond`).

SA, SA-SH and SA-MESH with seed 0 were trained at the same time on one GPU, where each takes longer
than on its own.
""",
    "Table 2, appendix": """
The gradient of SA-MESH is not that of Table 2, but `grad="implicit"`, as in Table 3: there, too,
gradients pass through three iterations of slot attention, and training was unstable with the other
gradient, which was not tested here.
""",
    "Table 3": """
**This is a shorter experiment of the same kind, not the paper's.** The paper uses 60,000 scenes of
the Multi-dSprites dataset and five seeds. We use slotmesh's own Multi-dSprites world, whose scenes
follow the description of the dataset. Network, learning rate, batch size and the lambda of MESH are
those of the authors' code. **The gradient of SA-MESH is not**: ours treats the last plan as
converged (`grad="implicit"`), the authors' code differentiates through the Sinkhorn iterations of
all MESH steps. The learning rate halves every 100,000 steps, so our shorter training ends at a
higher rate than the paper's. The paper's FG-mIoU has a standard deviation of up to 5.4 between
seeds, so a single seed says little.

SA-MESH-reuse and SA-MESH-detach differ from SA-MESH only in the gradient: *reuse* goes through the
Sinkhorn iterations of all MESH steps, like the authors' code, *detach* only through those of the
last step. *detach* was our first setting and was trained with this seed; the implicit gradient
replaced it because the loss rose and jumped late in training. This choice was thus made on the same
seed, and by the training loss, not by a test.
""",
    "Table 4": """
**This is a shorter experiment of the same kind, not the paper's**: 20,000 steps, about a sixteenth
of the paper's number, on slotmesh's own ClevrTex world. The gradient of SA-MESH differs from the
authors' code as in Table 3. SA and SA-MESH are still improving when training ends: from step 16,000
to step 20,000 their FG-ARI on validation samples rises from 62 to 65 and from 72 to 76.
""",
    "Table 5": """
**This is a shorter experiment of the same kind, not the paper's**: 20,000 steps, a quarter of the
paper's number, on slotmesh's own CLEVRER world. Masks are those of the world, not a detector's. The
gradient of SA-MESH differs from the authors' code as in Table 3. On CLEVRER-S, SA is still
improving when training ends: from step 12,000 to step 20,000 its FG-ARI on validation samples rises
from 24 to 48. Objects move little there, so even a fixed grid keeps most of them in one cell:
compare temporal consistency (TC) with the last rows. On CLEVRER-L, SA and SA-SH are below the grid
in TC.

SA, SA-SH and SA-MESH with seed 0 were trained at the same time on one GPU, where each takes longer
than on its own.
""",
    "Section 5.4": """
As SA-MESH on CLEVRER-S in Table 5, also in the number of steps, with a lambda of 2 in place of 8.
""",
    "Appendix, ablations": """
As SA in Table 3, also in the number of steps.
""",
}
"""Notes by the name of the table."""

COMMON = """
Rows with the same seed and number of training samples see the same samples in the same order, and
are trained in bfloat16 on a GPU. Test samples are used only for testing: the tested weights are
those with the lowest loss on validation samples. With several seeds, the table shows mean and
standard deviation.
"""
