"""Knowledge neurons: which coefficients a fact's answer hangs on."""
