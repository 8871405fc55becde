"""What all jobs share: how one is declared, found and begun; settings, facts, logs, errors, what comes from outside."""
