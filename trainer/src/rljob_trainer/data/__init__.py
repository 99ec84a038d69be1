"""Prompts and supervised examples: from sources, through chat template and tokenizer, to streams with a position.

    sources                   rows.py       files (tables.py), folders and the hub (library.py), generated ones (tasks/)
    -> columns                sources.py    the columns that prompts and supervised examples need (columns.py)
    -> Conversation           conversation.py   messages with all their fields, and the answer to imitate
    -> text and token ids     chat.py       the chat template; turn_end.py: the token that ends a turn
    -> TokenizedRows          tokenized.py  the length filter; unused.py: what nothing reads
    -> PromptDataset          prompts.py    tasks
    -> SupervisedDataset      supervised.py examples with an answer
    -> DataStream             stream.py     seeded order of each epoch; a position to save and restore

Import from its modules: `from rljob_trainer.data.stream import TaskStream`.
"""
