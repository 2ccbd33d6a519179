"""What Keras gets wrong or leaves out, put right behind its own interfaces; one file per fault."""
