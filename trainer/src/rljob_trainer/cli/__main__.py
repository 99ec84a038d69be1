from rljob_trainer.cli import main

main()
