"""Makes a model faster while it serves. So far: building kernels, in processes of their own."""
