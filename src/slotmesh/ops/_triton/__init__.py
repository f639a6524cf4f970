"""Triton kernels that Sinkhorn and MESH share. Only the files beside this one import triton."""
