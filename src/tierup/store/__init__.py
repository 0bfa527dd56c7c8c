"""What is kept on disk: compiled kernels and plans."""
