"""What a YAML file may say: one frozen pydantic model per part, each field declared once with its meaning."""
