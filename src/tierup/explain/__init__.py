"""Explains a model's plan: what was fused or refused and why, what it costs, and where the time of a call goes."""
