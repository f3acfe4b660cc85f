from railhop._engine import *
