"""Classes of inputs, and which suite tests each of them."""
