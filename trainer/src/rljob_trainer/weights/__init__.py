"""Weights from the ranks into the engines, and the probe that proves that they arrived.

    trainer rank                                          engine process
    ------------                                          --------------
    for name, tensor in full tensors                      begin_update(version)
        pack into bucket A   -- descriptor of A -->       load_bucket: map A, copy into the model, return
        pack into bucket B                                    (meanwhile)
        wait for A's return  -- descriptor of B -->       load_bucket: map B ...
        pack into bucket A ...
                                                          finish_update(version): all parameters arrived? reset caches
    probe: log-probs of the same tokens, engine against trainer

Bytes go from process to process (shared memory, or CUDA IPC); the driver sees descriptors only.
"""
