"""Prompts and supervised examples: from files or generated tasks, through the tokenizer, to streams with a position.

    files, synthetic://       rows.py       columns of the files, checked row by row, converted lazily
    -> columns                sources.py    the columns that prompts and supervised examples need
    -> PromptDataset          prompts.py    chat template, token ids, the length filter
    -> SupervisedDataset      supervised.py the same with a response
    -> DataStream             stream.py     seeded order of each epoch; a position to save and restore

Import from its modules: `from rljob_trainer.data.stream import TaskStream`.
"""
