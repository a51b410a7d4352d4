"""The flat vector of parameters, and the update rules on its parts."""

from manyhands.optim.flat import FlatModel as FlatModel
from manyhands.optim.rules import RULES as RULES
from manyhands.optim.rules import Config as Config
from manyhands.optim.rules import PartOptimizer as PartOptimizer
from manyhands.optim.rules import Slots as Slots
from manyhands.optim.rules import clip as clip
from manyhands.optim.rules import new_slots as new_slots
