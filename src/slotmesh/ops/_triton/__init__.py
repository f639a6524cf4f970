"""Triton kernels. Only the files in this folder import triton."""
