"""Evidence: published runs beside the model, error bands, and the constants that measurements give."""
