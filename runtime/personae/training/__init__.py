"""From what a character says to the adapter that says it: a LoRA trainer for a CPU, in NumPy, from the quantized base alone.

    settings    how a voice is trained
    base        the base model as float32 matrices; which architectures there are, exactly
    layers      what a transformer is made of, each with its derivative
    network     tokens -> logits and loss, and back to the gradients of A and B
    factors     A and B: how they begin, how they are kept
    adamw       gradients -> the next A and B
    examples    lines -> the very tokens that the service would show the model
    batches     several lines in one pass
    run         a training, step by step, until held-out lines say enough
    checkpoint  one that was broken off
    card        what a pack says of how its voice was made
    estimate    memory and time, before anything is loaded

It runs no model of llama.cpp's: whoever trains has the result compared with the engine before it is kept (cli/train).
"""
