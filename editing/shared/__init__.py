"""What several editors share: which layers, contexts, outlier states, facts of one call, rows to train on."""
