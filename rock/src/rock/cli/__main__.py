"""`python -m rock.cli`."""

from rock.cli import main

if __name__ == "__main__":
    main()
