"""GPUs and kernels: Xid and SXid decoding, kernel lines, device snapshots."""
