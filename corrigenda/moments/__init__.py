"""Running text, and second moments of coefficients over it."""
