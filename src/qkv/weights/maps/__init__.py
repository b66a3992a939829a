"""The names other libraries give to tensors and sizes, one file a family. They occur nowhere else in qkv."""
