"""What hardware should do by its data sheets, where nothing is recorded of it. No torch, no pytest."""
