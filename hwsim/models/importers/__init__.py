"""Readers of the files that people have: config.json, ONNX, torch.export, tables of layers."""
