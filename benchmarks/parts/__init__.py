"""The parts of the benchmark. Each runs by itself and leaves one document of plain values."""
