"""What several subjects need, a module for each thing: steps, inputs, problems, references, comparison and more."""
