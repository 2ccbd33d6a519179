"""`python -m keras_vit` runs the command line, as `keras-vit` does."""

import sys

from keras_vit_command import main

if __name__ == "__main__":
    sys.exit(main())
