"""What work costs on this machine: counted, measured, and later predicted."""
