"""Generated messages of `proto/`; `make proto` writes this folder."""
