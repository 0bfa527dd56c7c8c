"""Front ends: a model file or module becomes a Graph, one node for one node."""
