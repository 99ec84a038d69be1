"""Weight sync from the ranks to the engines, and the probe that verifies it.

    trainer rank                                          engine process
    ------------                                          --------------
    for name, tensor in full tensors                      begin_update(version)
        pack into bucket A   -- descriptor of A -->       load_bucket: map A, copy into the model, return
        pack into bucket B                                    (meanwhile)
        wait for A's return  -- descriptor of B -->       load_bucket: map B ...
        pack into bucket A ...
                                                          finish_update(version): all parameters arrived? reset caches
    probe: log-probs of the same tokens, engine against trainer

The bytes cross in shared memory or by CUDA IPC; the driver handles only descriptors.
"""
