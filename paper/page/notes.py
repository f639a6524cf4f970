"""What is said about the tables that are trained, beside their numbers."""

NOTES = {
    "Table 2": """
The paper gives no schedule for this table: the steps are iDSPN's, whose setup it follows. Average
precision pools the objects of all images. Images are those of slotmesh's own CLEVR world.

At distances of 0.25 and less ours is below the paper's. Much of what there is comes in the last
tenth of training, when the learning rate has fallen to a tenth: in its first 2,730 steps AP 0.125
on validation images rises from 0.05 to 0.10 (SA), from 0.11 to 0.19 (SA-SH) and from 0.22 to 0.32
(SA-MESH). So a longer annealing is the first thing to try; it has not been tried here.

SA, SA-SH and SA-MESH of seed 0 were trained at the same time on one GPU, where each takes longer
than alone.
""",
    "Table 3": """
**Ours is a shorter experiment of the same kind, not the paper's.** The paper: 60,000 scenes of the
Multi-dSprites dataset, five seeds. Ours: slotmesh's own Multi-dSprites world, whose scenes are
drawn after the description of the dataset. Network, learning rate, batches and the lambda of MESH
are those of the authors' code. SA-MESH is differentiated with its last plan taken for a converged
one (`grad="implicit"`), in the authors' code through the Sinkhorns of all its steps. The learning
rate halves every 100,000 steps, so that ours ends at a higher one than the paper's. The paper's
FG-mIoU differs between seeds by up to 5.4 (standard deviation), so that one seed says little.

SA-MESH-reuse and SA-MESH-detach differ from SA-MESH in the gradient alone: *reuse* goes through the
Sinkhorns of all MESH steps, as the authors' code; *detach* through the last one's iterations only.
*detach* was what slotmesh had first, and was trained with this seed; the implicit gradient took its
place because the loss rose and jumped as training went on. So this setting was not chosen on
another seed, and was chosen by the loss in training, not by a test.
""",
}
"""By the name of the paper's table."""

COMMON = """
All rows of a seed see the same samples in the same order, in bfloat16 where they are trained on a
GPU. Nothing is learned or chosen from test samples: the weights that are tested are those with the
lowest loss on validation samples. Several seeds: mean and standard deviation.
"""
