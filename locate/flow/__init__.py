"""How a fact's parts flow together: attention knockout, attributes of the subject, applied functions."""
