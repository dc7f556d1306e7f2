"""The engine on llama.cpp. api.py is the only door to `llama_cpp`; everything else here goes through it."""
