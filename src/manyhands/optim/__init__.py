"""The flat vector of parameters, and the update rules on its parts."""

from manyhands.optim.config import Config as Config
from manyhands.optim.flat import FlatModel as FlatModel
from manyhands.optim.part import PartOptimizer as PartOptimizer
from manyhands.optim.part import clip as clip
from manyhands.optim.part import new_slots as new_slots
from manyhands.optim.part import vectors as vectors
from manyhands.optim.rules import Slots as Slots
