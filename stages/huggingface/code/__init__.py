"""The modules that an export to Hugging Face holds a copy of. They import nothing but torch and Transformers."""
