from minispec.cli import main

main()
